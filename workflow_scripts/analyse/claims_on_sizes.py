"""Rules for claims on sizes: bytes of requests, weights and pages, and the share of a GPU left for the KV cache."""

from collections.abc import Iterator

from workflow_scripts.analyse.capacity import PUBLISHED as PUBLISHED_ROW
from workflow_scripts.analyse.claims_on_devices import (
    CLAIMS_STUDY,
    FOUR_GPUS,
    LLAMA_8B,
    PUBLISHED_UTILIZATION,
    facts_of,
)
from workflow_scripts.analyse.evidence import (
    COMPUTED,
    CONTRADICTED,
    ON_GPUS,
    SUPPORTED,
    Evidence,
    Finding,
    is_same,
    measured,
    rule,
)
from workflow_scripts.analyse.repeats import records
from workflow_scripts.catalog.gpus_and_models import load_gpus, resolve
from workflow_scripts.catalog.published import Claim, plain
from workflow_scripts.engines.block_sizes import default_block_size
from workflow_scripts.physics import formulas

LLAMA_70B, LLAMA_70B_4_BITS = "llama-3-70b", "llama-3.1-70b-instruct-awq"
GB = 1e9


# --- requests --------------------------------------------------------------------------------------------------------


@rule("kv-of-llama-3-70b", test="arithmetic decides it")
def kv_of_a_request(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Bytes of a request by the model's configuration, and what would give the published number."""
    facts = facts_of(LLAMA_70B)
    tokens, published = claim.value("tokens"), claim.value("kv_cache")
    found = tokens * facts.bytes_per_token() / GB
    attention = facts.attention
    heads = published / found * attention.kv_heads
    each = found * attention.heads / attention.kv_heads
    text = (
        f"2 x {facts.layers} layers x {attention.kv_heads} KV heads x {attention.head_dim} x {facts.kv_dtype_bytes()}"
        f" bytes x {plain(tokens)} tokens are {found:.3g} GB. {published:g} GB would need {heads:.3g} KV heads; with"
        f" a KV head for each of its {attention.heads} heads it would be {each:.3g} GB."
    )
    says = SUPPORTED if is_same(found, published) else CONTRADICTED
    yield Finding(text, COMPUTED, f"{LLAMA_70B}, BF16 cache", ("formulas.bytes_per_token",), says)


@rule("kv-of-a-batch-of-llama-3-70b", test="arithmetic decides it")
def kv_of_a_batch(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Bytes of a batch by the model's configuration."""
    requests, tokens, published = (claim.value(name) for name in ("requests", "tokens", "kv_cache"))
    found = requests * tokens * facts_of(LLAMA_70B).bytes_per_token() / GB
    text = f"{plain(requests)} requests of {plain(tokens)} tokens hold {found:.3g} GB; {published:g} GB are"
    text += f" {published / found:.3g} times that."
    says = SUPPORTED if is_same(found, published) else CONTRADICTED
    yield Finding(text, COMPUTED, f"{LLAMA_70B}, BF16 cache", ("formulas.bytes_per_token",), says)


# --- weights ---------------------------------------------------------------------------------------------------------


@rule("llama-70b-on-a100s", test="arithmetic decides it")
def weights_on_a100s(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Contradicted if the weights do not fit on as many GPUs as claimed, or if they fit on fewer."""
    memory = max(gpu.usable_memory_bytes or gpu.memory_bytes or 0.0 for gpu in resolve("A100 80GB"))
    for bits, model in ((16, LLAMA_70B), (4, LLAMA_70B_4_BITS)):
        facts, gpus = facts_of(model), int(claim.value("gpus", weight_bits=bits))
        weights = facts.weight_bytes
        fewest = next(n for n in range(1, 1000) if n * PUBLISHED_UTILIZATION * memory > weights)
        left = gpus * PUBLISHED_UTILIZATION * memory - weights
        text = (
            f"The weights of {model} take {weights / GB:.3g} GB; {gpus} A100 80GB with {PUBLISHED_UTILIZATION:g} of"
            f" their memory have {gpus * PUBLISHED_UTILIZATION * memory / GB:.3g} GB."
        )
        if left > 0:
            text += (
                f" Less than {left / GB:.3g} GB, or {left / facts.bytes_per_token():,.0f} tokens, are left for the KV"
                " cache."
            )
        says = SUPPORTED if fewest == gpus else CONTRADICTED
        yield Finding(text, COMPUTED, f"A100 80GB, {model}", ("config/gpus.yaml", "physics.model_facts"), says)


# --- share of the memory ---------------------------------------------------------------------------------------------


def _shares_at_most(utilization: float) -> dict[str, float]:
    """For each GPU of the published sweep, the share of memory (%) that the weights of the 8B model leave."""
    weights, shares = facts_of(LLAMA_8B).weight_bytes, {}
    for name in sorted(FOUR_GPUS.gpus):
        gpu = load_gpus()[name]
        memory = gpu.usable_memory_bytes or gpu.memory_bytes
        assert memory is not None
        shares[name] = 100 * formulas.kv_cache_bytes(memory, utilization, weights) / memory
    return shares


@rule("kv-share-of-memory", test=f"{CLAIMS_STUDY} (sweep utilization; table capacity)")
def kv_share(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Contradicted by a device on which weights alone leave less, and by measured shares outside the range."""
    low, high = claim.range("kv_share")
    shares = _shares_at_most(PUBLISHED_UTILIZATION)
    text = (
        f"With {PUBLISHED_UTILIZATION:g} of the memory, the weights of {LLAMA_8B} leave at most"
        f" {', '.join(f'{share:.0f} % of {gpu}' for gpu, share in shares.items())}."
    )
    says = CONTRADICTED if min(shares.values()) < low else None
    yield Finding(text, COMPUTED, f"four GPUs, {LLAMA_8B}", ("formulas.kv_cache_bytes",), says)
    yield from _measured_shares(evidence, low, high)


def _measured_shares(evidence: Evidence, low: float, high: float) -> Iterator[Finding]:
    capacity = evidence.tables["capacity"]
    share = 100 * capacity["observed_kv_cache_bytes"] / capacity["predicted_device_memory_bytes"]
    rows = capacity.assign(share=share)[share.notna() & (capacity["source"] != PUBLISHED_ROW)]
    for row in records(rows):
        text = (
            f"The KV cache takes {row['share']:.0f} % of the memory at utilization {row['gpu_memory_utilization']:g}."
        )
        says = SUPPORTED if low <= row["share"] <= high else CONTRADICTED
        yield measured(ON_GPUS.covers(row["gpu"], row["model"]), row, text, says, (row["cell_id"],))


@rule("utilization-is-for-the-kv-cache", test="arithmetic decides it")
def meaning_of_utilization(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Contradicted if the weights alone leave less than the utilization for the KV cache."""
    published = claim.value("kv_share")
    utilization = claim.quantity("kv_share").at["gpu_memory_utilization"]
    shares = _shares_at_most(utilization)
    most = max(shares, key=lambda gpu: shares[gpu])
    text = (
        f"That is the share for the whole engine. At {utilization:g} the weights of {LLAMA_8B} leave at most"
        f" {shares[most]:.0f} % of {most} for the KV cache, and less on smaller GPUs."
    )
    says = CONTRADICTED if shares[most] < published else None
    yield Finding(text, COMPUTED, f"four GPUs, {LLAMA_8B}", ("formulas.kv_cache_bytes",), says)


# --- pages -----------------------------------------------------------------------------------------------------------


@rule("pages-of-4-kib", test="arithmetic decides it")
def size_of_a_page(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    """Bytes of a block, and of its part in one layer, with vLLM's default block size."""
    size, sizes = default_block_size("cuda"), {}
    for model in ("opt-125m", LLAMA_8B, LLAMA_70B):
        facts = facts_of(model)
        sizes[model] = formulas.bytes_per_block(size, facts.bytes_per_token()), facts.layers
    parts = [f"{plain(b)} bytes with {m} ({plain(b / layers)} per layer)" for m, (b, layers) in sizes.items()]
    text = f"A block of {size} tokens has {', '.join(parts)}; an operating system's page has one size."
    page = claim.value("page")
    says = SUPPORTED if all(page in (b, b / layers) for b, layers in sizes.values()) else CONTRADICTED
    yield Finding(text, COMPUTED, f"blocks of {size} tokens", ("formulas.bytes_per_block",), says)
