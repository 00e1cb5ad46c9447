"""The paper's classification sets, one entry each, in the form their owners ship."""

from veca.probes.datasets.entries import Entry, Form
from veca.probes.datasets.folders import ClassFolders
from veca.probes.datasets.label_owners import (
    read_caltech,
    read_cars,
    read_cub,
    read_flowers,
    read_imagenet,
    read_kaggle_imagenet,
    read_pickled,
    read_places,
    read_real,
)
from veca.probes.datasets.lists import (
    ImageList,
    ListedLabels,
    ListedSeveral,
    folder_name,
    name_before_number,
    rest_of_line,
)
from veca.probes.datasets.names import VOC
from veca.probes.datasets.records import Cifar

_IMAGENET = "image-net.org (ILSVRC 2012), or its Kaggle competition imagenet-object-localization-challenge"
_CIFAR = "cs.toronto.edu/~kriz/cifar.html (binary version)"


def _lists(*splits: str, path: str, image: str) -> dict[str, ImageList]:
    return {split: ImageList(path.format(split), image) for split in splits}


_CLASSES_TREE = Form("train", ClassFolders({"train": "train", "test": "test"}))
_CIFAR_10 = Cifar(
    tuple(f"data_batch_{n}.bin" for n in range(1, 6)), ("test_batch.bin",), "batches.meta.txt", 1
)
_CIFAR_100 = Cifar(("train.bin",), ("test.bin",), "fine_label_names.txt", 2)

CLASSIFICATION = (
    Entry(
        "IN1K",
        "classify",
        (
            Form("LOC_val_solution.csv", read_kaggle_imagenet),
            Form("val", read_imagenet),
        ),
        "{train,val}/WNID/*.JPEG, or Kaggle's ILSVRC/Data/CLS-LOC/{train,val} with LOC_val_solution.csv",
        _IMAGENET,
        "research",
    ),
    Entry(
        "INv2",
        "classify",
        (Form("0", ClassFolders({"test": "."}, numeric=True), "imagenetv2-matched-frequency-format-val"),),
        "imagenetv2-matched-frequency-format-val/{0…999}/*.jpeg",
        "huggingface.co/datasets/vaishaal/ImageNetV2",
        "MIT",
    ),
    Entry(
        "ReaL",
        "multilabel",
        (Form("real.json", read_real),),
        "real.json, and val/ with ILSVRC2012_val_*.JPEG (class folders or not)",
        f"github.com/google-research/reassessed-imagenet; images: {_IMAGENET}",
        "Apache-2.0",
    ),
    Entry(
        "Places365",
        "classify",
        (Form("places365_val.txt", read_places),),
        "{data,val}_{256,large}/, places365_{train_standard,val}.txt, categories_places365.txt",
        "places2.csail.mit.edu (Places365-Standard, images and filelist)",
        "research",
    ),
    Entry(
        "Food101",
        "classify",
        (
            Form(
                "meta/train.txt",
                ListedLabels(
                    _lists("train", "test", path="meta/{}.txt", image="images/{}.jpg"),
                    folder_name,
                    classes="meta/classes.txt",
                ),
                "food-101",
            ),
        ),
        "food-101/{images/CLASS/*.jpg, meta/{train,test,classes}.txt}",
        "data.vision.ee.ethz.ch/cvl/datasets_extra/food-101",
        "research",
    ),
    Entry(
        "CIFAR-10",
        "classify",
        (
            Form(_CIFAR_10.names, _CIFAR_10, "cifar-10-batches-bin"),
            Form("batches.meta", read_pickled, "cifar-10-batches-py"),
            _CLASSES_TREE,
        ),
        "cifar-10-batches-bin/{data_batch_1…5,test_batch}.bin with batches.meta.txt, or {train,test}/CLASS/*",
        _CIFAR,
        "none stated",
    ),
    Entry(
        "CIFAR-100",
        "classify",
        (
            Form(_CIFAR_100.names, _CIFAR_100, "cifar-100-binary"),
            Form("meta", read_pickled, "cifar-100-python"),
            _CLASSES_TREE,
        ),
        "cifar-100-binary/{train,test}.bin with fine_label_names.txt, or {train,test}/CLASS/*",
        _CIFAR,
        "none stated",
    ),
    Entry(
        "SUN397",
        "classify",
        (
            Form(
                "Training_01.txt",
                ListedLabels(
                    {
                        "train": ImageList("Training_01.txt", "{}"),
                        "test": ImageList("Testing_01.txt", "{}"),
                    },
                    folder_name,
                    classes="ClassName.txt",
                ),
                "SUN397",
            ),
        ),
        "SUN397/{a,b,…}/CLASS/*.jpg with ClassName.txt and the first partition, {Training,Testing}_01.txt",
        "vision.princeton.edu/projects/2010/SUN (images, Partitions.zip)",
        "research",
    ),
    Entry(
        "Cars",
        "classify",
        (Form("devkit", read_cars, "stanford_cars"),),
        "cars_{train,test}/*.jpg, devkit/{cars_meta,cars_train_annos}.mat, cars_test_annos_withlabels.mat",
        "ai.stanford.edu/~jkrause/cars/car_dataset.html (mirrored on Kaggle)",
        "research",
    ),
    Entry(
        "Aircraft",
        "classify",
        (
            Form(
                "variants.txt",
                ListedLabels(
                    _lists("train", "val", "test", path="images_variant_{}.txt", image="images/{}.jpg"),
                    rest_of_line,
                    classes="variants.txt",
                ),
                "fgvc-aircraft-2013b/data",
            ),
        ),
        "fgvc-aircraft-2013b/data/{images/*.jpg, images_variant_{train,val,test}.txt, variants.txt}",
        "robots.ox.ac.uk/~vgg/data/fgvc-aircraft",
        "research",
    ),
    Entry(
        "VOC07",
        "multilabel",
        (Form("ImageSets/Main", ListedSeveral(VOC, ("train", "val", "test")), "VOCdevkit/VOC2007"),),
        "VOCdevkit/VOC2007/{JPEGImages/*.jpg, ImageSets/Main/CLASS_{train,val,test}.txt}",
        "host.robots.ox.ac.uk/pascal/VOC/voc2007 (trainval and test)",
        "Flickr's",
    ),
    Entry(
        "DTD",
        "classify",
        (
            Form(
                "labels/train1.txt",
                ListedLabels(
                    _lists("train", "val", "test", path="labels/{}1.txt", image="images/{}"), folder_name
                ),
                "dtd",
            ),
        ),
        "dtd/{images/CLASS/*.jpg, labels/{train,val,test}1.txt}",
        "robots.ox.ac.uk/~vgg/data/dtd",
        "research",
    ),
    Entry(
        "Caltech101",
        "classify",
        (Form("accordion", read_caltech, "caltech-101/101_ObjectCategories"),),
        "101_ObjectCategories/CLASS/image_*.jpg; 30 per class, drawn with a fixed seed, train",
        "data.caltech.edu/records/mzrjq-6wc02",
        "CC BY 4.0",
    ),
    Entry(
        "Pets",
        "classify",
        (
            Form(
                "annotations/trainval.txt",
                ListedLabels(
                    {
                        "train": ImageList("annotations/trainval.txt", "images/{}.jpg"),
                        "test": ImageList("annotations/test.txt", "images/{}.jpg"),
                    },
                    name_before_number,
                ),
            ),
        ),
        "{images/*.jpg, annotations/{trainval,test}.txt}",
        "robots.ox.ac.uk/~vgg/data/pets",
        "CC BY-SA 4.0",
    ),
    Entry(
        "CUB",
        "classify",
        (Form("train_test_split.txt", read_cub, "CUB_200_2011"),),
        "CUB_200_2011/{images/CLASS/*.jpg, {images,image_class_labels,train_test_split,classes}.txt}",
        "data.caltech.edu/records/65de6-vp158",
        "research",
    ),
    Entry(
        "Flowers",
        "classify",
        (Form("setid.mat", read_flowers),),
        "{jpg/image_*.jpg, imagelabels.mat, setid.mat}",
        "robots.ox.ac.uk/~vgg/data/flowers/102",
        "none stated",
    ),
)
