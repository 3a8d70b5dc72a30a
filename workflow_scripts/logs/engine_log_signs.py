"""The words in a log that show that its engine lives or has failed, and which failure it was."""

import re
from collections.abc import Mapping
from typing import Literal

Status = Literal["ok", "kv_too_small", "oom", "unsupported_block_size", "error"]

# --- signs of life ---

START_SIGNS = re.compile(
    r"Initializing an? (?:V[01] )?LLM engine|vLLM (?:API )?server version|[█▀▄] +version +v?\d|non-default args: "
    r"|args: Namespace\(|server_args=ServerArgs\("
)
COMES_UP = re.compile(r"init engine \(profile.*")
HAS_CACHE = re.compile(r"KV cache size: |num_gpu_blocks is: |# \w+ blocks: |max_total_num_tokens=")
LIVES = re.compile(
    r"init engine \(profile|Graph capturing finished in|cache_config_info with initialization"
    r"|Avg (?:prompt|generation) throughput(?:: *\d|:?$)|Spec(?:Decoding|ulative) metrics: |RUNNING: \d+ \| WAITING: \d"
    r"|Application startup complete|Uvicorn running on|ready to roll"
    r"|Started server process|Starting vLLM (?:API )?server|Processed prompts: +100%|Core engine process \d+ ready"
    r"|\"POST /(?:v\d/|generate|invocations)\S{0,200} HTTP/[\d.]{1,9}\" 200"
)
# These also show that an engine came up, but may be printed after it has failed.
LIVED = re.compile(
    r"Processed prompts: +\d\d?%|Waiting for application startup|Available routes are:|Route: /\w+, Methods"
    r"|Supported[_ ]tasks: \[|(?:Added|Received|Finished|Aborted|Preempted|Resumed) request \S+"
    r"|LMCache INFO: Reqid: \S+|\"(?:GET|POST) /\S{0,200} HTTP/[\d.]{1,9}\" [2-4]\d\d"
    r"|It took [\d.]+ seconds to (?:fall asleep|wake up)|Starting (?:initial single prompt test|main benchmark) run"
    r"|Traffic request rate: |Adding requests: +\d+%|^(?>.*?Prompt: ['\"]).*Generated text: "
)
RESULT = re.compile(
    r"Successful requests: +[1-9]|Request throughput(?: \(req/s\))? *[:|] +(?!0\.0+(?!\d))\d"
    r"|Throughput: [\d.]+ requests/s|Avg latency: [\d.]+ seconds|\"(?:completed|num_requests)\": [1-9]"
)

# Somebody stopped a server: what it prints afterwards, such as dying workers, is not a failure of the engine.
STOPS = re.compile(
    r"^Shutting down(?: FastAPI HTTP server\.?)?$|Received (?:SIGINT|SIGTERM|KeyboardInterrupt)|^KeyboardInterrupt$"
)

# --- signs of failure ---

# Causes that determine the status, in the words of vLLM, torch and the operating system.
CAUSES: Mapping[Status, re.Pattern[str]] = {
    "kv_too_small": re.compile(
        r"No available memory for the cache blocks|To serve at least one request with the models?'s max seq len"
        r"|larger than the (?:available KV cache memory|maximum number of tokens that can be stored in KV cache)"
        r"|less than requested memory for kv|Cannot auto-fit max_model_len|exceeds available Mamba cache blocks"
        r"|not enough Metal memory for KV cache|total_hbm_used_gb=\S{1,60} exceeds total_hbm_limit_cap_gb"
    ),
    "oom": re.compile(
        r"(?i:\bout of (?:\w+ )?memory\b)|\bOutOfMe\w*|(?:cuda|hip)Error(?:MemoryAllocation|OutOfMemory)"
        r"|(?i:\b(?:lack of|insufficient|not enough) (?:\w+ )?memory\b)"
        r"|(?:OUT_OF_(?:DEVICE_|HOST_)?|RT_)MEMORY(?:_ALLOCATION)?\b|PT_DEVMEM Allocation failed"
        r"|Failed to allocate (?:memory\b|[\d.]+ ?[KMG]i?B)|Allocation on device|RESOURCE_EXHAUSTED"
        r"|DefaultCPUAllocator: .{0,200}memory|std::bad_alloc|Cannot allocate memory|running low on memory"
        r"|(?:^|[._])(?:_Array)?MemoryError\b|less than (?:desired (?:GPU|CPU) memory utilization|the engine's budget)"
    ),
    "unsupported_block_size": re.compile(
        r"(?i)(?:unsupported|invalid|no common|no valid) (?:kv[ _]cache )?block[ _-]?size"
        r"|--block-size: invalid choice"
        r"|(?:\b|kv_)block[ _-]?size\b.{0,60}?(?:(?:is|are) not supported|unsupported|must be(?! set)|should be"
        r"|input should)"
        r"|requires? (?:only |the cache )?(?:--)?block[ _-]size|--block-size=\d+ requires|reduce --block-size"
        r"|supports? (?:only )?.{0,30}?block[ _-]?size|\bdivide .{0,20}?block[ _-]size"
        r"|block[ _-]?size[ =:(]*\d+\)? not supported|share no supported .{0,20}?block[ _-]size"
        r"|: \['?block_size not supported'?\]"  # in quotes if the study itself chose the backend
    ),
}
# Blocks of something other than the KV cache, a type that has nothing to do with a size, and advice.
NO_CAUSE = re.compile(
    r"(?i)\b(?:if|in case|may|might|avoid|prevent|potential)\b[^.]{0,60}\bout of memory"
    r"|(?:weight|quantization|scale|mamba|prefetch|thread|hash|[kn]-dimension|heterogeneous|fp4 only supports)"
    r"[ _-]block[ _-]?sizes?|block_size has unsupported type"
)
# The operating system killed a process. Usually memory ran out, but a scheduler's time limit looks the same.
KILLED = re.compile(
    r"^(?:\S+: line \d+: +)?(?:\d+ )?Killed\b|^\w*sh: killed\b|^\[\d+\] .{0,20}\bkilled\b"
    r"|task \d+: (?:Killed|Out Of Memory)|oom[-_]kill(?!\w{0,50} 0\b)|OOMKilled"
    r"|Out of memory: Kill|[Ee]xit(?: ?[Cc]ode| status|ed with code)?[:= (]+(?:-9|137)\b|(?:signal|by signal) 9\b"
    r"|killed due to memory pressure|exceeds the memory usage threshold"
)
TIME_LIMIT = re.compile(r"DUE TO TIME LIMIT|CANCELLED AT")
# Failures without an exception; the line itself says what failed.
OTHER_FAILURE = re.compile(
    r"^(?!srun|slurmstepd)[\w.-]+(?: [\w-]+)*: error: .+|Segmentation fault|Segfault encountered|Fatal Python error"
    r"|\[FATAL ERROR\]|^thread '.{1,40}' panicked at|^\S+ exited with code (?!0$|130$|137$|143$)\d|\(core dumped\)"
    r"|^\w*sh: (?:abort|segmentation fault)\b|terminate called after throwing|^what\(\): |Bus error"
    r"|Memory access fault by GPU|(?:Process group|NCCL) watchdog thread terminated with exception"
    r"|Engine iteration timed out|^Failed: [cC]uda error|error while attempting to bind"
    r"|(?:Successful requests: +|\"completed\": )0\b|No module named (?:'vllm'|vllm$)|vllm: (?:command )?not found"
    r"|^LLVM ERROR: |^Error: [A-Z]\w+$|^(?:Aborted|Illegal instruction|Floating point exception)$"
    r"|\*\*\* SIG(?:SEGV|ABRT|BUS|ILL|FPE)\b|^(?:free|malloc|munmap_chunk|realloc)\(\): |^(?:double free|corrupted )"
    r"|error while loading shared libraries|task \d+: Exited with exit code [1-9]|Error response from daemon"
    r"|CrashLoopBackOff"
)
# The engine is gone, but this line does not say why.
GENERIC = re.compile(
    r"Engine core initialization failed|EngineCore (?:failed|encountered|hit)|Engine process failed|EngineDeadError"
    r"|Engine loop (?:has died|is not running)|Background loop (?:has errored|is not running|is stopped)"
    r"|background task failed|WorkerProc (?:initialization failed|failed|hit)|fatal signal from worker"
    r"|died unexpectedly|died(?: with|,) exit code|Failed core proc|Dumping input data for|is already dead"
    r"|terminating server process|Worker failed with error|output_handler failed"
    r"|Error execut(?:ing method|\w*(?: \w*)?$)"  # perhaps cut off within a word
    r"|Exception in worker \w+ while processing|Call to \w+ method failed|(?:stack ?trace|root cause).{0,20}above"
    r"|[Ss]ee (?:root cause|stack ?trace)|Application startup failed|RayTaskError|Actor\w{0,50}Error\b|ChildFailedError"
    r"|Failed to (?:start|launch|load) (?:the )?(?:model|engine|server)\b|\b[Ss]erver failed to start\b|CancelledError"
    r"|BrokenPipeError|ConnectionResetError|ZMQError"
)
# Somebody ended the process; this is not a failure of the engine.
INTENDED = re.compile(r"^(?:KeyboardInterrupt|SystemExit|GeneratorExit|asyncio\.exceptions\.CancelledError)\b")

TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
# The inside of a traceback that the library Rich frames.
BOXED = re.compile(r"\s*[\u2500-\u257f]+(?! Traceback)(?=[^\u2500-\u257f]|$)(?!.*Traceback \()")
NEXT_OF_A_GROUP = re.compile(r"\s*\+[+-]+ \d+ -+$")
CHAIN = re.compile(r"During handling of the above exception|The above exception was the direct cause")
# Python reports an exception that the process survives: of one request, or during cleaning up.
SURVIVED = re.compile(r"Exception in ASGI application|Exception ignored in")
# Inside such a traceback: the loop that serves all requests failed, not a single request.
ENGINES_LOOP = re.compile(r", in (?:run_engine_loop|run_busy_loop|engine_step)$")
# An error of a compiler that an engine runs; the engine may have another way.
COMPILER = re.compile(r"(?:\S+:\d+:\d+: (?:fatal )?error|error: \S+:\d+:\d+): ")
EXCEPTION = re.compile(
    r"(?:\w{1,100}\.){0,20}[A-Z]\w{0,100}(?:Error(?:_\w{1,60})?|Exception|Exit|Interrupt|OutOfResources|Timeout|TimeoutExpired|BrokenProcessPool"
    r"|BackendCompilerFailed|Unsupported|ExceptionGroup)\b(?:\(\w{1,60}\))?(?::|$)"
)
# How the last line of a traceback begins, whatever the exception's name.
NAMED_ERROR = re.compile(r"[A-Za-z_][\w.]*(?:\(\w+\))?(?::|$)")
# Exceptions recognised by their message alone: the name in front of it may have been cut off.
NAMELESS = re.compile(
    r"(?:CUDA|HIP|XPU|NPU|HPU) out of memory\. Tried to allocate|No available memory for the cache blocks"
    r"|The model's max seq len \(\d+\) is larger|To serve at least one request with the models?'s max seq len"
    r"|Cannot auto-fit max_model_len|Free memory on device .{1,60} is less than desired|No common block size for \d"
    r"|None of the kernel sizes .{1,40} can divide|Paged KV cache block size must|No valid attention backend found for"
    r"|Selected backend \S+ is not valid for this configuration|Paged attention: not enough Metal memory"
    r"|total_hbm_used_gb=\S{1,60} exceeds total_hbm|The attention backends share no supported"
    r"|(?:Unsupported block size: |Block size must be a multiple of )\d|Bfloat16 is only supported on GPUs"
    r"|User-specified max_model_len \(\d+\) is greater|Engine core initialization failed"
    r"|max_num_seqs \(\d+\) exceeds available Mamba|Error in memory profiling\. Initial"
    r"|Allocation on device .{0,40}would exceed|The number of required GPUs exceeds the total|CUDA error: "
    r"|Model architectures \[.{1,80}\] (?:are not supported|failed to be inspected)|Failed to infer device type"
    r"|The checkpoint you are trying to load has model type|Total number of attention heads \(\d+\) must be divisible"
    r"|(?:AsyncEngineDeadError|EngineDeadError|MQEngineDeadError)\b|RESOURCE_EXHAUSTED: "
    r"|Value error, .{1,600}\[type=\w+"
)
# A program's own words before an exception that it caught. It may go on, unless the exception names a cause.
ANNOUNCED = re.compile(
    rf"[^:]{{0,60}}(?i:error|exception|fail|crash)(?:[^:]|:(?=\d)){{0,40}}: {{1,20}}`?"
    rf"(?:{EXCEPTION.pattern}|{NAMELESS.pattern})"
)
# The engine's own process logs an error only when it is about to end.
ENGINES_ERROR = re.compile(r"\bERROR \S+ \S+ \[?(?:v1/engine/)?core\.py:\d+\]")
# An exception that is part of another message: `future: <Task ... exception=ValueError('...')>`.
REPR = re.compile(
    r"\b(?P<name>(?:\w{1,100}\.){0,20}[A-Z]\w{0,100}(?:Error|Exception))\((?P<quote>['\"])(?P<words>.{0,600}?)(?P=quote)[,)]"
)
FRAME = re.compile(r"\s+File \".+\", line \d+|File \".+\", line \d+, in ")
# Ray's guesses why a worker died, such as memory: these are no evidence.
RAY_GUESSES = re.compile(r"potential root causes")


def status_of(message: str) -> Status | None:
    """The status for a message whose words name a cause; None for another message."""
    message = NO_CAUSE.sub("", message)
    return next((status for status, words in CAUSES.items() if words.search(message)), None)
