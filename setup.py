"""Which folder is which package; everything else about the project is in pyproject.toml.

setuptools cannot say in pyproject.toml that packages are found and that one of them, `veca.recipes`, lies
elsewhere.
"""

from setuptools import find_namespace_packages, setup

recipes = [f"veca.{name}" for name in find_namespace_packages(include=["recipes", "recipes.*"])]
veca = find_namespace_packages(include=["veca", "veca.*"], exclude=["*.__pycache__"])
veca_data = find_namespace_packages(
    "data_prep", include=["veca_data", "veca_data.*"], exclude=["*.__pycache__"]
)
setup(
    packages=[*veca, *recipes, *veca_data],
    package_dir={"veca.recipes": "recipes", "veca_data": "data_prep/veca_data"},
)
