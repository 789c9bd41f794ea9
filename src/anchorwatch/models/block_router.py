"""LLaDA2.2's router, which no stock class has.

Imported only where a checkpoint asks for it.
Shapes: B rows of a batch, T positions, E experts.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter


class BlockRouter(Glm4MoeTopkRouter):  # type: ignore[misc]
    """LLaDA2.2's router: a block of positions admits some experts, each token chooses among those.

    With scores s = sigmoid(x W) + bias, a block admits the `capacity` experts whose greatest s
    over its tokens is greatest. Blocks count from the first row of a pass; the last may be shorter.
    """

    capacity: int
    block: int

    def forward(
        self, hidden_states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # 1. Scores [B, T, E]; the bias chooses experts and does not weigh them.
        batch, length = hidden_states.shape[:2]
        logits = torch.nn.functional.linear(hidden_states.float(), self.weight.float())
        scores = logits.sigmoid()
        ranks = scores + self.e_score_correction_bias
        # 2. Of each block the admitted experts, [B, blocks, E].
        missing = -length % self.block
        whole = torch.nn.functional.pad(ranks, (0, 0, 0, missing), value=-torch.inf)
        best = whole.view(batch, -1, self.block, self.num_experts).amax(dim=2)
        admitted = torch.zeros_like(best, dtype=torch.bool)
        admitted.scatter_(-1, best.topk(self.capacity, dim=-1).indices, True)
        admitted = admitted.repeat_interleave(self.block, dim=1)[:, :length]
        # 3. Each token's experts among them, and their weights.
        ranks = ranks.masked_fill(~admitted, -torch.inf).flatten(0, 1)
        chosen = ranks.topk(self.top_k, dim=-1).indices
        weights = scores.flatten(0, 1).gather(1, chosen)
        if self.norm_topk_prob:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return logits.flatten(0, 1), weights * self.routed_scaling_factor, chosen


def route_by_blocks(network: PreTrainedModel) -> None:
    """Give a Glm4Moe whose config has a `routing_block` and an `expert_capacity` these routers."""
    for module in network.modules():
        if isinstance(module, Glm4MoeTopkRouter):
            module.__class__ = BlockRouter
            module.capacity = network.config.expert_capacity
            module.block = network.config.routing_block
