from workflow_scripts.page.report import REPORT
from workflow_scripts.present.page_script import joined


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
