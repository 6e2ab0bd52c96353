"""Sharing seams: the model on a hub, and the card that goes with it. What they do is loaded on use, from `hub/`."""

from __future__ import annotations

from typing import Any

from kunren.base.registry import resolve
from kunren.seams.base import Seams


class SharingSeams(Seams):
    """Override `push_to_hub` or `create_model_card` to share in another way; both are called where sharing is asked."""

    hub_model_id: str | None = None  # known when the repository is

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Upload model, processing class and card to `args.hub_model_id`; further keywords are the card's."""
        push = resolve("kunren.hub.upload:push_to_hub")
        return push(self, commit_message, blocking, token, revision, private, **kwargs)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write README.md into the output folder: what was trained, how, on what, and to which numbers."""
        write = resolve("kunren.hub.model_card:create_model_card")
        write(self, language, license, tags, model_name, finetuned_from, tasks, dataset_tags, dataset, dataset_args)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Make the repository on the hub, where it is not there yet; `private` as in `hub_private_repo`."""
        resolve("kunren.hub.upload:init_hf_repo")(self, token, private)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        resolve("kunren.hub.upload:push_from_checkpoint")(self, checkpoint_folder)

    def _finish_current_push(self) -> None:
        resolve("kunren.hub.upload:finish_current_push")(self)
