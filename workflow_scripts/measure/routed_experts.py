"""How many experts a step's tokens are routed to, noted by hooks in a `transformers` model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from workflow_scripts.study.outcome import ExpertsTouched


@contextmanager
def experts_noted(model: Any, tokens: int) -> Iterator[list[Any]]:
    """While the context lasts, note the share of a layer's experts that each call with `tokens` tokens uses.

    The shares stay on the device, so that it need not wait for the host. In every family, transformers keeps a layer's
    routed experts in one module `experts`, which receives the routes; code from a model's own repository may not.
    """
    shares: list[Any] = []

    def note(experts: Any, given: tuple[Any, ...]) -> None:
        used = _used(experts.num_experts, given, tokens)
        if used is not None:
            shares.append(used.float().mean())

    modules = [module for name, module in model.named_modules() if name.rpartition(".")[2] == "experts"]
    hooks = [module.register_forward_pre_hook(note) for module in modules if hasattr(module, "num_experts")]
    try:
        yield shares
    finally:
        for hook in hooks:
            hook.remove()


def _used(count: int, given: tuple[Any, ...], tokens: int) -> Any:
    """Which of `count` experts a call uses; None if it has another number of tokens, or does not get routes."""
    import torch

    inputs, *routes = given
    if not routes:  # Llama 4: the inputs of all tokens for each expert, zero where a token is not routed to it
        of_expert = inputs.reshape(count, -1)
        return of_expert.any(dim=1) if len(inputs) == count * tokens else None
    if not isinstance(routes[0], torch.Tensor) or routes[0].is_floating_point() or len(routes[0]) != tokens:
        return None
    used = torch.zeros(count, dtype=torch.bool, device=routes[0].device)
    used[routes[0].flatten()] = True
    return used


def touched(shares: Sequence[Any], tokens: int) -> ExpertsTouched | None:
    """What was noted; None if nothing was."""
    if not shares:
        return None
    return ExpertsTouched(share=sum(float(share) for share in shares) / len(shares), tokens=tokens)
