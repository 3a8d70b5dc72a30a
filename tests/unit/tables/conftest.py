from tests.unit.questions.conftest import nothing_known_elsewhere  # noqa: F401
