"""What a stored block's values depend on, field by field, and the hash-chain roots that follow from it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtool.blocks import BlockHash, namespace
from kvtool.engine.storage.layout import BlockShape

if TYPE_CHECKING:
    from kvtool.engine.compute.model import Model

ROOT_SCHEME = "kvtool.blocks/1"


@dataclass(frozen=True)
class Identity:
    """Whose blocks they are, and of what shape. Shards serve only a model of equal identity.

    `model` is the model's fingerprint: named fields (weights, config, rope, attention, dtype, tokenizer,
    chat_template, ...) and `digest`, over all of them.
    """

    name: str
    model: dict[str, str]
    shape: BlockShape

    @classmethod
    def of_model(cls, model: "Model", block_size: int) -> "Identity":
        """What blocks of `model` are stored and looked up under."""
        shape = BlockShape.of_layers(block_size, model.dtype_name, model.config.layer_shapes)
        return cls(model.name, dict(model.fingerprint), shape)

    def root(self, tenant: str = "") -> BlockHash:
        """Root of the hash chains of one tenant's prompts ("" where the log has no tenants).

        The name is not in it: a renamed copy of a model computes the same values.
        """
        return namespace(ROOT_SCHEME, self.model["digest"], self.shape.block_size, tenant)

    def differences(self, other: "Identity") -> list[str]:
        """Fields in which `other` differs, as `field: ours / theirs`; empty when blocks may be shared."""
        ours = {**self.shape.to_json(), **self.model}
        theirs = {**other.shape.to_json(), **other.model}
        found = [
            f"{field}: {_brief(ours.get(field))} / {_brief(theirs.get(field))}"
            for field in sorted({*ours, *theirs} - {"digest"})
            if ours.get(field) != theirs.get(field)
        ]
        if not found and ours["digest"] != theirs["digest"]:
            found = [f"digest: {ours['digest']} / {theirs['digest']}"]
        return found

    def to_json(self) -> dict[str, Any]:
        """As the manifest keeps it."""
        return {"name": self.name, "model": self.model, "shape": self.shape.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Identity":
        """Inverse of `to_json`; KeyError, TypeError or ValueError on anything else."""
        return cls(str(data["name"]), dict(data["model"]), BlockShape.from_json(data["shape"]))


def _brief(value: object) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
