#!/usr/bin/env python3
"""Makes the files beside it that no crate of the tests can write: pictures by Pillow, sounds by
libsndfile. Numbers of Ogg streams are random, all else is the same on every run. Made with pillow 13.0.0, numpy 2.4.6 and soundfile of libsndfile 1.2.2.

    python make.py
"""
import os

import numpy as np
import soundfile
from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))


def noise(width, height):
    """RGB noise that the tests compute too."""
    index = np.arange(width * height * 3, dtype=np.uint64)
    return ((index * 2654435761) % 2**32 >> 24).astype(np.uint8).reshape(height, width, 3)


def smooth(width, height):
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], -1).astype(np.uint8)


def sine(rate, seconds, hertz=440.0):
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)


def at(name):
    return os.path.join(HERE, name)


# What Pillow's bicubic filter makes of noise, where pixels are weighted over many and where not.
for (w, h), (to_w, to_h) in [((200, 150), (96, 72)), ((61, 97), (24, 48)), ((40, 7), (48, 96)), ((500, 33), (12, 33))]:
    small = Image.fromarray(noise(w, h)).resize((to_w, to_h), Image.Resampling.BICUBIC)
    open(at(f"resized_{w}x{h}_{to_w}x{to_h}.rgb"), "wb").write(small.tobytes())

picture = Image.fromarray(smooth(40, 24))
picture.save(at("smooth.jpg"), quality=95, subsampling=0)
open(at("smooth_jpg.rgb"), "wb").write(Image.open(at("smooth.jpg")).convert("RGB").tobytes())
picture.save(at("progressive.jpg"), quality=95, subsampling=0, progressive=True)
picture.convert("CMYK").save(at("print.jpg"))
picture.convert("L").save(at("grey.jpg"), quality=95)
picture.save(at("smooth.webp"), lossless=True)
frames = [Image.fromarray(noise(8, 8)), Image.fromarray(smooth(8, 8))]
for name in ("moving.png", "moving.webp", "moving.gif"):
    frames[0].save(at(name), save_all=True, append_images=frames[1:], duration=100)
two = Image.new('P', (2, 1))
two.putpalette([200, 10, 20, 30, 40, 50])
two.putdata([0, 1])
two.save(at("palette.png"), bits=1)

# Every other kind of file that is decoded, and what Pillow makes of it.
grey = np.arange(40 * 24, dtype=np.uint16).reshape(24, 40) * 37
masked = picture.quantize(16)
masked.info["transparency"] = 3
dark = Image.merge("CMYK", [*picture.split(), Image.fromarray(smooth(40, 24)[::-1, :, 1] // 2)])
others = {
    "still.gif": (picture.quantize(64), {}),
    "masked.gif": (masked, {"transparency": 3}),
    "moving.gif": None,
    "smooth.bmp": (picture, {}),
    "palette.bmp": (picture.quantize(16), {}),
    "grey.bmp": (picture.convert("L"), {}),
    "two.bmp": (picture.convert("1"), {}),
    "smooth.tiff": (picture, {"compression": "tiff_lzw"}),
    "deflate.tiff": (picture, {"compression": "tiff_adobe_deflate"}),
    "jpeg.tiff": (picture, {"compression": "jpeg", "quality": 95}),
    "bits.tiff": (picture.convert("1"), {"compression": "packbits"}),
    "print.tiff": (picture.convert("CMYK"), {}),
    "clear.tiff": (picture.convert("RGBA"), {}),
    "grey16.tiff": (Image.fromarray(grey), {}),
    "grey16.png": (Image.fromarray(grey), {}),
    "lossy.webp": (picture, {"quality": 90}),
    "clear.webp": (picture.convert("RGBA"), {"lossless": True}),
    "print.jpg": None,
    "dark.jpg": (dark, {"quality": 95, "subsampling": 0}),
}
for name, made in others.items():
    if made:
        made[0].save(at(name), **made[1])
    pixels = Image.open(at(name)).convert("RGB").tobytes()
    stem = "smooth" if pixels == picture.tobytes() else name.replace(".", "_")
    open(at(f"{stem}.rgb"), "wb").write(pixels)
picture.quantize(16).save(at("palette.tiff"))
Image.fromarray(smooth(40, 24).astype(np.float32)[:, :, 0]).save(at("floats.tiff"))
exif = Image.Exif()
exif[0x0112] = 6
picture.save(at("turned.tiff"), exif=exif)
picture.save(at("turned.png"), exif=exif)

soundfile.write(at("sine_16k.flac"), sine(16000, 0.1), 16000, subtype="PCM_16")
stereo = np.stack([sine(48000, 0.05), sine(48000, 0.05, 880.0)], -1)
soundfile.write(at("stereo_48k.flac"), stereo, 48000, subtype="PCM_24")
soundfile.write(at("sine_44k.mp3"), sine(44100, 0.3), 44100)
soundfile.write(at("sine_44k.ogg"), sine(44100, 0.3), 44100, format="OGG", subtype="VORBIS")
soundfile.write(at("sine_48k.opus"), sine(48000, 0.1), 48000, format="OGG", subtype="OPUS")
soundfile.write(at("tone.wav"), sine(8000, 0.05), 8000, subtype="PCM_24")
