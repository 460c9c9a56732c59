"""Long campaigns: `make prove CAMPAIGN=torture`. `make test` runs a small slice of each.

To add one, write a function in `campaigns/` and register it:

    @campaign(
        "fuzz",
        "Send random requests to every route; no answer is a server error.",
        unit="calls",
        size=100_000,
        slice_size=10_000,
    )
    def fuzz(part: Slice) -> Outcome:
        report = send_random_requests(part.url, part.seed, part.size, part.report)
        require(report.server_errors == 0, f"{report.server_errors} server errors")
        return Outcome({"calls": report.calls})

A slice is what a campaign repeats if it is interrupted: choose one of about a minute.
"""

from prove.campaign import Campaign, CampaignFailed, Outcome, Slice, campaign, merge, require

__all__ = ["Campaign", "CampaignFailed", "Outcome", "Slice", "campaign", "merge", "require"]
