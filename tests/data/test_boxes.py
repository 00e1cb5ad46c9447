from pathlib import Path

import pytest

from veca.data.boxes import Box, read_boxes


def test_boxes_of_each_image_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(
        'image,left,top,right,bottom,label\na.jpg,0,0,10,20.5,cat\n"b,c.jpg",1,2,3,4,dog\na.jpg,5,5,6,6,\n'
    )
    boxes = read_boxes(tmp_path / "b.csv")
    assert boxes == {"a.jpg": [Box(0, 0, 10, 20.5), Box(5, 5, 6, 6)], "b,c.jpg": [Box(1, 2, 3, 4)]}
    assert str(boxes["a.jpg"][0]) == "0,0,10,20.5"
    assert boxes["a.jpg"][0].scaled(2, 0.5) == (0, 0, 20, 10.25)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "first line must name the columns image,left,top,right,bottom"),
        ("image,x,y,w,h\na,1,2,3,4\n", "first line must name"),
        ("image,left,top,right,bottom\n", "has no boxes"),
        ("image,left,top,right,bottom\na,1,2,3\n", "line 2: its sides are no numbers"),
        ("image,left,top,right,bottom\na,1,2,x,4\nb,5,2,3,4\nc,0,0,nan,1\n", r"line 3: 5,2,3,4 is empty"),
        ("image,left,top,right,bottom\n" + "a,3,3,3,3\n" * 5, "and 2 more"),
    ],
)
def test_wrong_files_are_refused_by_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "b.csv").write_text(text)
    with pytest.raises(ValueError, match=words) as error:
        read_boxes(tmp_path / "b.csv")
    assert "b.csv" in str(error.value)
