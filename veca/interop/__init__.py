"""Veca for transformers: importing this registers config, models and image processor with the Auto classes.

    import veca.interop
    from transformers import AutoBackbone, AutoImageProcessor, AutoModel

    model = AutoModel.from_pretrained("my-model")  # a folder written by save_pretrained, or a Hub id

It is an import of its own because it brings all of transformers with it, which `import veca` does not. No
code is read from a model folder: the classes are those of this package.

config.py     VecaConfig: the fields of config.json
models.py     VecaModel and VecaBackbone: a Veca with the outputs transformers users expect
processor.py  VecaImageProcessor: `veca.preprocess` for batches
local_backbone.py   AutoBackbone on a local folder, which transformers 5 does not read
"""

from transformers import AutoBackbone, AutoConfig, AutoImageProcessor, AutoModel

from veca.interop.config import VecaConfig
from veca.interop.local_backbone import answer_for_local_folders
from veca.interop.models import VecaBackbone, VecaBackboneOutput, VecaModel
from veca.interop.processor import VecaImageProcessor

__all__ = ["VecaBackbone", "VecaBackboneOutput", "VecaConfig", "VecaImageProcessor", "VecaModel"]

AutoConfig.register(VecaConfig.model_type, VecaConfig, exist_ok=True)
AutoModel.register(VecaConfig, VecaModel, exist_ok=True)
AutoBackbone.register(VecaConfig, VecaBackbone, exist_ok=True)
answer_for_local_folders()
AutoImageProcessor.register(VecaConfig, slow_image_processor_class=VecaImageProcessor, exist_ok=True)
