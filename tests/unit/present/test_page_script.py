import pytest

from workflow_scripts.page.report import REPORT
from workflow_scripts.present.page_script import ScriptError, joined


def test_a_module_comes_once_and_after_those_that_it_imports(tmp_path):
    (tmp_path / "main.js").write_text(
        'import { b } from "./b.js";\nimport { c } from "./c.js";\nexport const main = b + c;\n'
    )
    (tmp_path / "b.js").write_text('import { c } from "./c.js";\nexport const b = c + 1;\n')
    (tmp_path / "c.js").write_text("export const c = 1;\n")
    script = joined(tmp_path)
    assert script.split("\n") == [
        *("(() => {", '"use strict";', "const c = 1;", "", "const b = c + 1;", "", "const main = b + c;", ""),
        *("return { main };", "})();", ""),
    ]


A, IMPORTS_A = "export const a = 1;\n", 'import { a } from "./a.js";\n'


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ({"main.js": IMPORTS_A}, "a.js: No such file"),
        ({"main.js": 'import { b } from "./a.js";\n', "a.js": A}, "a.js does not export b"),
        ({"main.js": IMPORTS_A, "a.js": 'import { main } from "./main.js";\n'}, "main.js -> a.js -> main.js"),
        ({"main.js": IMPORTS_A + "const other = 1;\n", "a.js": A + "let other = 2;\n"}, "also declared in a.js"),
        ({"main.js": "export default 1;\n"}, "'export default 1;' is not"),
        ({"main.js": 'import * as a from "./a.js";\n'}, "is not a form"),
    ],
)
def test_modules_that_cannot_be_joined_are_refused(tmp_path, modules, said):
    for name, text in modules.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ScriptError, match=said):
        joined(tmp_path)


def test_every_module_of_the_page_is_in_its_script():
    script = joined(REPORT / "page")
    for module in (REPORT / "page").glob("*.js"):
        first = module.read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith("// "), f"{module.name} begins with a line that says what it is for"
        assert script.count(first) == 1, module.name


def test_no_module_can_turn_text_into_markup_or_code():
    markup = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "fetch(")
    for module in (REPORT / "page").glob("*.js"):
        text = module.read_text(encoding="utf-8")
        assert [word for word in markup if word in text] == [], module.name
