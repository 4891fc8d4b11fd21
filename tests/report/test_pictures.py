import xml.etree.ElementTree as ET

from hwnas.report import BlockPicture, StagePicture
from hwnas.report.pictures import architecture_lines, stages_picture


def test_architecture_lines_have_one_line_per_stage():
    lines = architecture_lines(
        {
            "resolution": 16,
            "width": 0.5,
            "stage0.depth": 2,
            "stage0.block0.kernel_size": 5,
            "stage0.block0.expand_ratio": 6,
            "stage0.block1.kernel_size": 3,
            "stage0.block1.expand_ratio": 4.0,
        }
    )
    assert lines == ["resolution 16, width 0.5", "stage0: depth 2 · k5 e6 · k3 e4"]


def test_architecture_lines_keep_names_of_other_spaces():
    assert architecture_lines({"cell.edge.op": "conv"}) == ["cell: edge op conv"]
    assert architecture_lines({}) == []


def test_stages_picture_draws_one_box_per_block_with_labels():
    stages = (
        StagePicture(16, 1, (BlockPicture(3, 6),)),
        StagePicture(24, 2, (BlockPicture(5, 3), BlockPicture(7, 4))),
    )
    picture = ET.fromstring(stages_picture(stages, 24, "#123456", "<knee> & co"))
    boxes = [box.get("points").split() for box in picture.iter("polygon")]
    heights = [
        [
            abs(float(box[i].split(",")[1]) - float(box[j].split(",")[1]))
            for i, j in ((0, 3), (1, 2))
        ]
        for box in boxes
    ]
    words = [text.text for text in picture.iter("text")]
    assert picture.findtext("title") == "<knee> & co"
    assert len(boxes) == 3
    assert heights[0][0] < heights[2][0], "more channels are taller"
    assert [left > right for left, right in heights] == [False, True, False], "stride 2 tapers"
    assert {"16 ch", "24 ch, 1/2", "3×3", "5×5", "7×7", "e6"} <= set(words)


def test_stages_picture_lies_within_its_frame():
    stages = tuple(
        StagePicture(960, 2, tuple(BlockPicture(7, 6) for _ in range(4))) for _ in range(6)
    )
    picture = ET.fromstring(stages_picture(stages, 960, "#123456", "large"))
    width, height = float(picture.get("width")), float(picture.get("height"))
    for box in picture.iter("polygon"):
        for point in box.get("points").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height
