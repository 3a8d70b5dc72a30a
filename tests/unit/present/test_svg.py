import base64
import xml.etree.ElementTree as ET

from workflow_scripts.present.style import INK
from workflow_scripts.present.svg import data_address, size_px

SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="72pt" height="36.4pt">'
    f'<path style="fill: {INK}"/><path style="fill: #0173b2"/></svg>'
)


def test_ink_turns_with_the_page_and_other_colours_do_not(tmp_path):
    drawn = tmp_path / "a.svg"
    drawn.write_text(SVG)
    kind, data = data_address(drawn).split(",")
    assert kind == "data:image/svg+xml;base64"
    text = base64.b64decode(data).decode()
    ET.fromstring(text)
    sheet, paths = text.split("</style>")
    assert f"--c0:{INK};" in sheet.split("@media")[0]
    assert "--c0:#e6edf3;" in sheet.split("@media")[1]
    assert "fill: var(--c0)" in paths
    assert "fill: #0173b2" in paths


def test_size_in_css_pixels(tmp_path):
    drawn = tmp_path / "a.svg"
    drawn.write_text(SVG)
    assert size_px(drawn) == (96, 49)
