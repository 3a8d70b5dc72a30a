"""The version of what a cell measures.

Measuring rules do not depend on the source of the measuring modules, so that a comment never repeats a GPU hour.
Raise the version when what is measured changes; every cell of an older protocol is then measured again.

1: fixed output lengths with `ignore_eos`, greedy, warm-up with other prompts, prefix cache reset between repeats.
"""

PROTOCOL_VERSION = 1
