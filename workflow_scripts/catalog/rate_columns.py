"""How tables of published rates name their columns: patterns of whole names, in upper or lower case.

The page has the same patterns, so they use only what Python and JavaScript have in common.
"""

from collections.abc import Mapping

PATTERNS: Mapping[str, str] = {
    "gpu": r"gpus?|gpu[ _-]?(name|type|model)|device|accelerator|hardware",
    "sequences": (
        r"(knob[ _-])?max[ _-]?num[ _-]?seqs|(max[ _-]?)?batch([ _-]?size)?|(max[ _-]?)?concurrency"
        r"|((max[ _-])?num[ _-]|concurrent[ _-])?(seqs?|sequences|users)"
    ),
    "throughput": r".*(throughput|tok\w*(\s*/\s*|[_ -]per[_ -]|_)s(ec(ond)?)?(?![a-z])|\btps\b|_tps\b).*",
    "not_tokens": (
        r".*(req|per[ _-]?watt|per[ _-]?joule|(?<![a-z])ratio|speed-?up|time|latency|ms\b|%|percent|\bv?ram\b|\bgi?b\b)"
        r".*"
    ),
    "output": r".*(output|generat|decod).*",
    # Tables with several such columns count one work in several ways.
    "counted": r".*(output|generat|decod|total|prompt|prefill|input).*",
}
