"""What happens to each kind of image file."""

import io

import numpy as np
import pytest
from PIL import Image

from veca.data.decode import BadImage, decode
from veca_data.images import Encoding, format_of, is_image_name, pack, probe

KEEP = Encoding()


def test_a_jpeg_is_kept_byte_for_byte(picture, encode):
    data = encode(picture(0, 64, 48))
    assert pack(data, KEEP) == ("jpg", data, 64, 48)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "I;16"])
def test_png_of_any_mode_is_kept_and_readable(picture, encode, mode):
    base = picture(1, 64, 48)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(base.convert("L")).astype(np.uint16) * 257)
    else:
        image = base.convert(mode)
    data = encode(image, "PNG")
    packed = pack(data, KEEP)
    assert packed == ("png", data, 64, 48)
    assert decode(packed.data).shape == (48, 64, 3)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_jpeg_of_any_mode_is_kept_and_readable(picture, encode, mode):
    data = encode(picture(2, 64, 48).convert(mode))
    packed = pack(data, KEEP)
    assert packed.data == data
    assert decode(packed.data).shape == (48, 64, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_size_is_as_displayed(picture, encode, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(picture(3, 64, 48), exif=exif)
    shown = (48, 64) if orientation >= 5 else (64, 48)
    assert probe(data) == shown
    assert decode(data).shape[1::-1] == shown


@pytest.mark.parametrize("name", ["BMP", "GIF", "TIFF"])
def test_other_formats_become_png_without_loss(picture, encode, name):
    data = encode(picture(4, 64, 48), name)
    packed = pack(data, KEEP)
    assert packed.suffix == "png"
    assert format_of(data) == name
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(packed.data))), expected)


@pytest.mark.parametrize("name", ["GIF", "WEBP"])
def test_an_animation_gives_its_first_frame(picture, encode, name):
    frames = [picture(i, 64, 48) for i in range(3)]
    options = {"lossless": True} if name == "WEBP" else {}
    data = encode(frames[0], name, save_all=True, append_images=frames[1:], duration=50, **options)
    packed = pack(data, KEEP)
    assert packed.suffix == "png"
    shown = np.asarray(Image.open(io.BytesIO(packed.data))).astype(int)
    # GIF has 256 colours, so its frames are near the originals, but nearest to their own.
    errors = [np.abs(shown - np.asarray(frame)).mean() for frame in frames]
    assert int(np.argmin(errors)) == 0


def test_a_still_webp_is_kept(picture, encode):
    data = encode(picture(5, 64, 48), "WEBP")
    assert pack(data, KEEP) == ("webp", data, 64, 48)


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_truncated_files_are_refused(picture, encode, name, share):
    data = encode(picture(6, 64, 48), name)
    with pytest.raises(BadImage):
        pack(data[: int(len(data) * share)], KEEP)


def test_a_truncated_jpeg_with_a_whole_thumbnail_is_refused(picture, encode):
    """The thumbnail has an end marker of its own; looking for any would be fooled."""
    thumbnail = encode(picture(7, 16, 16))
    data = encode(picture(7, 64, 48))
    segment = b"\xff\xe2" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    whole = data[:2] + segment + data[2:]
    assert probe(whole) == (64, 48)
    with pytest.raises(BadImage, match=r"truncated|damaged"):
        probe(whole[:-200])


def test_data_after_the_end_marker_is_no_truncation(picture, encode):
    data = encode(picture(8, 64, 48)) + b"camera's own notes" * 10
    assert pack(data, KEEP).data == data


@pytest.mark.parametrize("data", [b"", b"these are words, not pixels\n" * 20, b"\0" * 4096])
def test_what_is_no_image_is_refused(data):
    with pytest.raises(BadImage, match=r"empty|not-an-image"):
        pack(data, KEEP)


def test_a_decompression_bomb_is_refused_without_decoding():
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">2I5B", 60_000, 60_000, 8, 2, 0, 0, 0)
    png = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 100))
        + chunk(b"IEND", b"")
    )
    with pytest.raises(BadImage, match="too-large"):
        pack(png, KEEP)


def test_reencoding_shrinks_and_never_enlarges(picture, encode):
    encoding = Encoding(max_short_side=40, quality=90)
    small = pack(encode(picture(9, 64, 32)), encoding)
    large = pack(encode(picture(9, 320, 160)), encoding)
    assert small[2:] == (64, 32)
    assert large[2:] == (80, 40)
    for packed in (small, large):
        assert packed.suffix == "jpg"
        assert decode(packed.data).shape == (packed.height, packed.width, 3)


def test_reencoding_turns_upright_and_drops_the_exif(picture, encode):
    exif = Image.Exif()
    exif[0x0112] = 6
    image = picture(10, 64, 48)
    packed = pack(encode(image, exif=exif, quality=95), Encoding(quality=95))
    assert packed[2:] == (48, 64)
    shown = decode(packed.data).astype(int)
    turns = [Image.Transpose.ROTATE_270, Image.Transpose.ROTATE_90, Image.Transpose.TRANSPOSE]
    errors = [np.abs(shown - np.asarray(image.transpose(turn))).mean() for turn in turns]
    assert errors[0] < 15 < min(errors[1:])
    assert not Image.open(io.BytesIO(packed.data)).getexif()


def test_reencoding_is_antialiased(encode):
    """A fine checkerboard averages to gray; picking pixels would keep black or white."""
    board = (np.indices((512, 512)).sum(axis=0) % 2 * 255).astype(np.uint8)
    packed = pack(encode(Image.fromarray(board), "PNG"), Encoding(max_short_side=64, quality=95))
    assert np.abs(decode(packed.data).astype(int) - 127).max() < 12


def test_reencoding_lays_alpha_over_white(encode):
    clear = Image.new("RGBA", (32, 32), (0, 0, 0, 0))
    packed = pack(encode(clear, "PNG"), Encoding(quality=92))
    assert decode(packed.data).min() > 250


def test_image_names():
    assert all(map(is_image_name, ("a.jpg", "b/C.JPEG", "d.x.png", "e.heic")))
    assert not any(map(is_image_name, ("a", "a.txt", "jpg", "a.jpg.part")))
