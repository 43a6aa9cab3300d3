"""Output of a run for its user: progress, the metrics file, logs, the report page and the summary."""

from typing import TYPE_CHECKING

from mpitrain.faces import lazy_attributes

if TYPE_CHECKING:
    from mpitrain.observe.figures import render_png
    from mpitrain.observe.maps.field_map import MapLook, draw_map, error_look
    from mpitrain.observe.metrics_file import MetricsFile, read_metrics
    from mpitrain.observe.page.findings import Findings
    from mpitrain.observe.page.pairs import Course, Pairs, draw_pairs, rows_to_show
    from mpitrain.observe.page.places import GridErrors
    from mpitrain.observe.page.skill import ErrorSums, Skill
    from mpitrain.observe.page.words import describe_settings
    from mpitrain.observe.summary import RunSummary, TargetSkill, TestSkill
    from mpitrain.observe.trackers.tracker import BackgroundTracker
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "figures": ("render_png",),
            "maps.field_map": ("MapLook", "draw_map", "error_look"),
            "metrics_file": ("MetricsFile", "read_metrics"),
            "page.findings": ("Findings",),
            "page.pairs": ("Course", "Pairs", "draw_pairs", "rows_to_show"),
            "page.places": ("GridErrors",),
            "page.skill": ("ErrorSums", "Skill"),
            "page.words": ("describe_settings",),
            "summary": ("RunSummary", "TargetSkill", "TestSkill"),
            "trackers.tracker": ("BackgroundTracker",),
        },
    )
