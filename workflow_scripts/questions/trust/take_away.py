"""How to cite a study, the files beside the page that hold its numbers, and explanations of technical terms."""

from collections.abc import Iterator

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import read_yaml
from workflow_scripts.page.blocks import UNKNOWN, Block, Command, Definitions, Fold, Link, Table
from workflow_scripts.page.report import REPORT, Report, Subject
from workflow_scripts.study.definition import study_sha256

CITATION = CHECKOUT / "CITATION.cff"
# Digits of a commit.
SHORT_HASH = 12


def citation(report: Report) -> Iterator[Block]:
    software, study = read_yaml(CITATION, InputError), report.study
    year = str(software["date-released"])[:4]
    # As BibTeX writes them.
    named = [
        f"{{{of['name']}}}" if "name" in of else f"{of['family-names']}, {of['given-names']}"
        for of in software["authors"]
    ]
    digest = study_sha256(study)
    cells = report.tables.rows
    started, commits = cells["started_at"].dropna().astype(str), cells["git_commit"].dropna().unique()
    by = f" by commit {', '.join(commit[:SHORT_HASH] for commit in commits)}" if len(commits) else ""
    measured = f"measured until {started.max()[:10]}{by}" if len(started) else "not measured yet"
    name = study.name.replace("_", "\\_")
    entry = {
        "author": " and ".join(named),
        "title": f"{{{software['title']}}}",
        "version": software["version"],
        "year": year,
        "note": f"Study {name}, definition sha256:{digest}, {measured}",
    }
    fields = "".join(f"  {name} = {{{value}}},\n" for name, value in entry.items())
    command = f"@software{{{software['title']}-{study.name},\n{fields}}}"
    yield Command("BibTeX", command, ["Reports with the same definition request the same measurements."])


def files(report: Report) -> Iterator[Block]:
    rows: list[list[str | Link]] = [
        [path.stem, *(report.link(path.with_suffix(f".{kind}"), kind) or UNKNOWN for kind in ("csv", "parquet"))]
        for path in sorted(report.tables.folder.glob("*.parquet"))
    ]
    note = "These links work only if the page lies beside its tables."
    table = Table("Tables", ["Table", "CSV", "Parquet"], rows, [False] * 3, note)
    yield Fold(f"All tables with all digits, beside this page: {len(rows)}", [table])


def glossary(report: Report) -> Iterator[Block]:
    yield Definitions(list(read_yaml(REPORT / "glossary.yaml", InputError).items()))


GLOSSARY = Subject(id="glossary", title="Glossary", tables=[glossary])
SUBJECT = Subject(id="take-away", title="Citation and data", tables=[citation, files])
