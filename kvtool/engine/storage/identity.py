"""What a stored block's values depend on, field by field, and the hash-chain roots that follow from it."""

from dataclasses import dataclass
from typing import Any

from kvtool.blocks import BlockHash, namespace
from kvtool.engine.storage.layout import BlockShape

ROOT_SCHEME = "kvtool.blocks/1"


@dataclass(frozen=True)
class Identity:
    """Model, tokenizer, template and block shape. Shards serve only a model of equal identity.

    `model` is a model's fingerprint: named fields (weights, config, rope, ...), flat, JSON values; one of
    them is `digest`, over all. `encoder` names the tokenizer's and the chat template's fingerprints.
    """

    name: str
    model: dict[str, Any]
    encoder: dict[str, str]
    shape: BlockShape

    def root(self, tenant: str = "") -> BlockHash:
        """Root of the hash chains of one tenant's prompts ("" where the log has no tenants).

        The name is not in it: a renamed copy of a model computes the same values.
        """
        shape = self.shape
        encoder = [part for field in sorted(self.encoder) for part in (field, self.encoder[field])]
        return namespace(
            ROOT_SCHEME,
            self.model["digest"],
            *encoder,
            shape.block_size,
            shape.dtype,
            repr(shape.groups),
            tenant,
        )

    def differences(self, other: "Identity") -> list[str]:
        """Fields in which `other` differs, as `field: ours / theirs`; empty when blocks may be shared."""
        found = []
        for title, ours, theirs in (
            ("model", self.model, other.model),
            ("encoder", self.encoder, other.encoder),
            ("shape", self.shape.to_json(), other.shape.to_json()),
        ):
            for field in sorted({*ours, *theirs}):
                if ours.get(field) != theirs.get(field):
                    found.append(f"{title}.{field}: {_brief(ours.get(field))} / {_brief(theirs.get(field))}")
        return found

    def to_json(self) -> dict[str, Any]:
        """As the manifest keeps it."""
        return {
            "name": self.name,
            "model": self.model,
            "encoder": self.encoder,
            "shape": self.shape.to_json(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Identity":
        """Inverse of `to_json`; KeyError, TypeError or ValueError on anything else."""
        return cls(
            str(data["name"]),
            dict(data["model"]),
            dict(data["encoder"]),
            BlockShape.from_json(data["shape"]),
        )


def _brief(value: object) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
