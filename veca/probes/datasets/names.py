"""Class names that no file of a dataset gives, in the order of its ids."""


def _names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(text.split(", "))


VOC = _names(
    "aeroplane, bicycle, bird, boat, bottle, bus, car, cat, chair, cow, diningtable, dog, horse, "
    "motorbike, person, pottedplant, sheep, sofa, train, tvmonitor"
)

CONTEXT_59 = _names(
    "aeroplane, bag, bed, bedclothes, bench, bicycle, bird, boat, book, bottle, building, bus, cabinet, "
    "car, cat, ceiling, chair, cloth, computer, cow, cup, curtain, dog, door, fence, floor, flower, "
    "food, grass, ground, horse, keyboard, light, motorbike, mountain, mouse, person, plate, platform, "
    "pottedplant, road, rock, sheep, shelves, sidewalk, sign, sky, snow, sofa, table, track, train, "
    "tree, truck, tvmonitor, wall, water, window, wood"
)

CITYSCAPES = _names(
    "road, sidewalk, building, wall, fence, pole, traffic light, traffic sign, vegetation, terrain, sky, "
    "person, rider, car, truck, bus, train, motorcycle, bicycle"
)

CAMVID = _names("sky, building, pole, road, pavement, tree, sign, fence, car, pedestrian, bicyclist")

COCO_THINGS = _names(
    "person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, "
    "stop sign, parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, "
    "backpack, umbrella, handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, "
    "baseball bat, baseball glove, skateboard, surfboard, tennis racket, bottle, wine glass, cup, fork, "
    "knife, spoon, bowl, banana, apple, sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake, "
    "chair, couch, potted plant, bed, dining table, toilet, tv, laptop, mouse, remote, keyboard, "
    "cell phone, microwave, oven, toaster, sink, refrigerator, book, clock, vase, scissors, teddy bear, "
    "hair drier, toothbrush"
)

COCO_STUFF = _names(
    "banner, blanket, branch, bridge, building-other, bush, cabinet, cage, cardboard, carpet, "
    "ceiling-other, ceiling-tile, cloth, clothes, clouds, counter, cupboard, curtain, desk-stuff, dirt, "
    "door-stuff, fence, floor-marble, floor-other, floor-stone, floor-tile, floor-wood, flower, fog, "
    "food-other, fruit, furniture-other, grass, gravel, ground-other, hill, house, leaves, light, mat, "
    "metal, mirror-stuff, moss, mountain, mud, napkin, net, paper, pavement, pillow, plant-other, "
    "plastic, platform, playingfield, railing, railroad, river, road, rock, roof, rug, salad, sand, sea, "
    "shelf, sky-other, skyscraper, snow, solid-other, stairs, stone, straw, structural-other, table, "
    "tent, textile-other, towel, tree, vegetable, wall-brick, wall-concrete, wall-other, wall-panel, "
    "wall-stone, wall-tile, wall-wood, water-other, waterdrops, window-blind, window-other, wood"
)
