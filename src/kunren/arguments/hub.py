"""Publishing the model on the Hugging Face Hub."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kunren.arguments.checks import enum_member
from kunren.arguments.choices import HubStrategy
from kunren.arguments.group import ArgumentGroup, explained

HUB_TOKEN_MASK = "<HUB_TOKEN>"  # what stands in for a token wherever arguments are shown


@dataclass(init=False, repr=False, eq=False)
class Hub(ArgumentGroup):
    push_to_hub: bool = explained(False, "Push the model to the Hub at every save, as hub_strategy says.")
    # Not in the repr: that of a dataclass subclass would show it in logs.
    hub_token: str | None = dataclasses.field(
        default=None, repr=False, metadata={"help": "The token for the Hub; None takes that of the log-in."}
    )
    hub_private_repo: bool | None = explained(None, "Make the repository private; None takes the account's default.")
    hub_model_id: str | None = explained(None, "The repository, as 'user/name'; named after output_dir if not given.")
    hub_strategy: HubStrategy | str = explained(
        "every_save",
        "What to push: 'end' the model when training ends, 'every_save' at each save too, 'checkpoint' "
        "with the newest checkpoint beside it, 'all_checkpoints' with all of them.",
    )
    hub_always_push: bool = explained(
        False, "Push every save in turn; otherwise a newer one takes the place of one that still waits for the Hub."
    )
    hub_revision: str | None = explained(None, "The branch to push to, made if it is not there; None: the main branch.")

    def normalise(self) -> None:
        self.hub_strategy = enum_member(HubStrategy, "hub_strategy", self.hub_strategy)
        # Arguments rebuilt from a saved dict carry the mask, which is no token.
        self.hub_token = None if self.hub_token == HUB_TOKEN_MASK else self.hub_token
