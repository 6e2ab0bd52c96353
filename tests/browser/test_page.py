"""The page in a real browser: it draws, answers to mouse, fingers and keys, asks for nothing, complains of nothing."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from browser.chromium import Browser

FIRST = "document.querySelector('figure')"
PLOT = f"{FIRST}.querySelector('.plot')"
AXIS = f"{PLOT}.dataset.domain.split(' ').map(Number)"


def box_of(browser: Browser, selector: str) -> tuple[float, float, float, float]:
    found: list[float] = browser.run(
        f"(e => {{ const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; }})"
        f"(document.querySelector({selector!r}))"
    )
    return found[0], found[1], found[2], found[3]


def inside(browser: Browser, across: float, up: float = 0.5) -> tuple[float, float]:
    """A point of the first chart, by its shares of width and height."""
    browser.run(f"{FIRST}.scrollIntoView({{block: 'center'}})")
    left, top, width, height = box_of(browser, "figure .plot")
    return left + width * across, top + height * up


def show(browser: Browser, address: str, width: int = 1440, scheme: str = "light", is_touch: bool = False) -> None:
    browser.size(width, 900, is_touch)
    browser.prefer(scheme)
    browser.open(address)
    browser.wait_for(f"{PLOT} && {PLOT}.dataset.domain")


@pytest.mark.parametrize(
    "name", ["single", "japanese", "compare-japanese", "failed", "odd", "lost-compare", "hostile", "hostile-compare"]
)
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1440, "light")])
def test_it_draws_alone_and_fits(browser: Browser, pages: dict[str, str], name: str, width: int, scheme: str) -> None:
    show(browser, pages[name], width, scheme)
    browser.run("document.getElementById('log').click()")
    browser.run("scrollTo(0, document.body.scrollHeight)")
    browser.settle()
    browser.run("document.querySelector('[data-key=time]').click()")
    browser.settle()
    assert browser.errors == []
    assert browser.requests == [pages[name]]
    assert browser.run("document.documentElement.scrollWidth") == width
    assert browser.run(f"{FIRST}.querySelectorAll('path.line').length") >= 1
    assert browser.run("document.querySelectorAll('img').length") == 0
    boxes = "[...document.querySelectorAll('figure, section, .tile')].map(e => e.getBoundingClientRect().right)"
    assert max(browser.run(boxes)) <= width


def test_pointing_at_a_curve_shows_its_values_and_all_charts_share_the_place(
    browser: Browser, pages: dict[str, str]
) -> None:
    show(browser, pages["single"])
    assert browser.run(f"{FIRST}.querySelector('.tip').hidden")
    browser.mouse("mouseMoved", *inside(browser, 0.5))
    browser.settle()
    told = browser.run(f"{FIRST}.querySelector('.tip').innerText")
    assert "Step" in told and "loss" in told and "eval_loss" in told and "0." in told
    drawn = "[...document.querySelectorAll('figure')].filter(f => f.querySelector('.cursor')).length"
    assert browser.run(drawn) >= 2
    tip, plot = box_of(browser, "figure .tip"), box_of(browser, "figure .plot")
    assert plot[1] <= tip[1] and tip[1] + tip[3] <= plot[1] + plot[3]
    assert 0 < tip[0] - (plot[0] + plot[2] / 2) < 40 or 0 < plot[0] + plot[2] / 2 - tip[0] - tip[2] < 40
    browser.mouse("mouseMoved", 5, 5)
    browser.settle()
    assert browser.run(drawn) == 0 and browser.run(f"{FIRST}.querySelector('.tip').hidden")


def test_dragging_zooms_all_charts_and_a_double_click_resets(browser: Browser, pages: dict[str, str]) -> None:
    show(browser, pages["single"])
    whole = browser.run(AXIS)
    browser.drag(inside(browser, 0.3), inside(browser, 0.6))
    left, right = browser.run(AXIS)
    assert whole[0] < left < right < whole[1] and (right - left) < 0.4 * (whole[1] - whole[0])
    labels = browser.run(f"[...{PLOT}.querySelectorAll('text.x')].map(t => Number(t.textContent.replace(',', '')))")
    assert all(left <= label <= right for label in labels) and len(labels) > 2
    browser.run("document.querySelectorAll('figure')[3].scrollIntoView()")
    browser.wait_for(f"document.querySelectorAll('.plot')[3].dataset.domain === '{left} {right}'")
    place = inside(browser, 0.5)
    for count in (1, 2):
        browser.mouse("mousePressed", *place, button="left", clickCount=count)
        browser.mouse("mouseReleased", *place, button="left", clickCount=count)
    browser.settle()
    assert browser.run(AXIS) == whole


def test_the_wheel_scrolls_the_page_and_zooms_where_it_was_asked_to(browser: Browser, pages: dict[str, str]) -> None:
    show(browser, pages["single"])
    whole = browser.run(AXIS)
    place = inside(browser, 0.5)
    browser.mouse("mouseWheel", *place, deltaX=0, deltaY=-200)
    browser.settle()
    assert browser.run(AXIS) == whole
    place = inside(browser, 0.5)
    browser.mouse("mouseWheel", *place, deltaX=0, deltaY=-200, modifiers=2)
    browser.wait_for(f"{PLOT}.dataset.domain !== '{whole[0]} {whole[1]}'")
    browser.run("document.querySelector('.plain').click()")
    browser.settle()
    assert browser.run(AXIS) == whole and browser.run("document.querySelector('.plain').disabled")


def test_fingers_point_and_pinch(browser: Browser, pages: dict[str, str]) -> None:
    show(browser, pages["single"], 390, is_touch=True)
    whole = browser.run(AXIS)
    browser.touch("touchStart", inside(browser, 0.6))
    browser.touch("touchEnd")
    browser.settle()
    assert "loss" in browser.run(f"{FIRST}.querySelector('.tip').innerText")
    one, other = inside(browser, 0.5), inside(browser, 0.6)
    browser.touch("touchStart", one, other)
    for apart in (10, 30, 60):
        browser.touch("touchMove", (one[0] - apart, one[1]), (other[0] + apart, other[1]))
    browser.touch("touchEnd")
    browser.settle()
    left, right = browser.run(AXIS)
    assert right - left < 0.7 * (whole[1] - whole[0])


def test_keys_do_what_the_mouse_does(browser: Browser, pages: dict[str, str]) -> None:
    show(browser, pages["single"])
    whole = browser.run(AXIS)
    browser.run(f"{PLOT}.focus()")
    browser.press("ArrowRight", 39)
    first = browser.run(f"{FIRST}.querySelector('.tip').innerText")
    browser.press("ArrowRight", 39)
    assert browser.run(f"{FIRST}.querySelector('.tip').innerText") != first
    assert browser.run("document.querySelector('[aria-live]').textContent") != ""
    browser.press("+")
    assert browser.run(AXIS) != whole
    browser.press("0")
    assert browser.run(AXIS) == whole
    reached = set()
    for _ in range(12):
        browser.press("Tab", 9)
        reached.add(browser.run("document.activeElement.id || document.activeElement.getAttribute('class')"))
    assert {"plot"} < reached


def test_controls_redraw(browser: Browser, pages: dict[str, str]) -> None:
    show(browser, pages["single"])
    line = f"{PLOT}.querySelector('.line:not(.raw)').getAttribute('d')"
    before = browser.run(line)
    browser.run("(s => { s.value = 90; s.dispatchEvent(new Event('input')); })(document.getElementById('smoothing'))")
    browser.settle()
    smooth = browser.run(line)
    browser.run("document.getElementById('log').click()")
    browser.settle()
    assert len({before, smooth, browser.run(line)}) == 3
    steps = browser.run(AXIS)
    browser.run("document.querySelector('[data-key=time]').click()")
    browser.settle()
    assert browser.run(AXIS) != steps and browser.run(f"{PLOT}.querySelector('text.x').textContent")[-1] in "sm"
    assert browser.errors == []


def test_a_loss_that_is_lost_is_not_shown_as_its_last_number(browser: Browser, pages: dict[str, str]) -> None:
    show(browser, pages["lost"])
    assert browser.run(f"{FIRST}.querySelector('[data-curve=loss]').textContent") == "NaN"
    assert browser.run(f"{FIRST}.querySelector('[data-curve=eval_loss]').textContent") != "NaN"
    assert browser.run(f"{FIRST}.querySelector('.lost').innerText") == "■ loss: not finite since step 800"
    browser.mouse("mouseMoved", *inside(browser, 0.3))
    browser.settle()
    assert browser.run(f"{FIRST}.querySelector('[data-curve=loss]').textContent") != "NaN"
    show(browser, pages["failed"])
    assert browser.run(f"{FIRST}.querySelector('.lost').innerText") == (
        "■ loss: not finite at some steps from 300 to 360"
    )
    assert browser.run("document.querySelector('.callout details').open") is False
    show(browser, pages["single"])
    assert browser.run("[...document.querySelectorAll('.lost')].every((one) => one.hidden)") is True


def test_a_comparison_says_which_curves_are_dashed(browser: Browser, pages: dict[str, str]) -> None:
    show(browser, pages["compare"])
    said = browser.run(f"{FIRST}.querySelector('figcaption').innerText").split()
    assert said == ["Loss", "loss", "eval_loss"]
    dashed = "getComputedStyle({}).strokeDasharray"
    swatches = f"{FIRST}.querySelectorAll('figcaption .swatch line')"
    assert browser.run(dashed.format(f"{swatches}[0]")) == "none" != browser.run(dashed.format(f"{swatches}[1]"))
    assert browser.run(f"getComputedStyle({swatches}[1]).stroke").startswith("rgb")


def test_curves_and_runs_are_switched_off_and_on(browser: Browser, pages: dict[str, str]) -> None:
    count = f"{FIRST}.querySelectorAll('path.line:not(.raw)').length"
    show(browser, pages["single"])
    assert browser.run(count) == 2
    browser.run(f"{FIRST}.querySelectorAll('.legend button')[1].click()")
    browser.settle()
    assert browser.run(count) == 1
    show(browser, pages["compare"])
    assert browser.run(count) == 4
    browser.run("document.querySelector('.bench .legend button').click()")
    browser.settle()
    assert browser.run(count) == 2
    assert browser.run("document.querySelector('.bench .legend button').getAttribute('aria-pressed')") == "false"


COLOR_OF = """name => {
    const e = document.createElement('i');
    e.style.color = `var(--${name})`;
    document.body.append(e);
    const color = getComputedStyle(e).color.match(/[0-9.]+/g).map(Number);
    e.remove();
    return [name, color];
}"""
LOOK_OF = """character => {
    const canvas = document.createElement('canvas');
    canvas.width = canvas.height = 40;
    const pen = canvas.getContext('2d', {willReadFrequently: true});
    pen.font = '30px ' + getComputedStyle(document.body).fontFamily;
    pen.fillText(character, 2, 32);
    return canvas.toDataURL();
}"""


def contrast(one: list[float], other: list[float]) -> float:
    """Of two colours, as WCAG 2 defines it (https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio)."""

    def luminance(color: list[float]) -> float:
        parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


# What is left of red, green and blue light to eyes without cones for red, and for green: Machado et al. 2009,
# https://doi.org/10.1109/TVCG.2009.113, severity 1.
EYES = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}


def seen(color: list[float], eyes: str) -> tuple[float, float, float]:
    """A colour in CIE L*a*b*, in which distances are as large as they look."""
    light = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
    light = [min(1.0, max(0.0, sum(a * b for a, b in zip(row, light, strict=True)))) for row in EYES[eyes]]
    rows = ((0.4339, 0.3763, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8728))  # to XYZ, white being 1
    x, y, z = (sum(a * b for a, b in zip(row, light, strict=True)) for row in rows)
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("chosen", ["light", "dark"])
def test_light_and_dark_are_the_systems_or_ones_own_and_both_can_be_read(
    browser: Browser, pages: dict[str, str], chosen: str
) -> None:
    ground = "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)"
    show(browser, pages["single"], scheme=chosen)
    assert (sum(browser.run(ground)) > 380) == (chosen == "light")
    inks, lines = ["ink", "soft", "faint", "accent", "good", "bad", "warm"], [f"s{index}" for index in range(8)]
    names = [*inks, *lines, "card", "ground", "warm-wash", "bad-wash", "wash"]
    colors: dict[str, Any] = dict(browser.run(f"{names}.map({COLOR_OF})"))
    for ink in inks:
        assert min(contrast(colors[ink], colors[on]) for on in ("card", "ground")) >= 4.5, ink
    for ink, on in (("warm", "warm-wash"), ("bad", "bad-wash"), ("accent", "wash"), ("ink", "warm-wash")):
        assert contrast(colors[ink], colors[on]) >= 4.5, ink
    for line in lines:
        assert contrast(colors[line], colors["card"]) >= 3, line  # what WCAG asks of graphics
    for eyes, (one, next_one) in itertools.product(EYES, itertools.combinations(lines, 2)):
        assert math.dist(seen(colors[one], eyes), seen(colors[next_one], eyes)) > 12, (eyes, one, next_one)
    other = "dark" if chosen == "light" else "light"
    browser.run(f"document.querySelector('#theme [data-key={other}]').click()")
    browser.settle()
    assert (sum(browser.run(ground)) > 380) == (other == "light")
    browser.run("document.querySelector('#theme [data-key=system]').click()")


def test_japanese_has_its_glyphs(browser: Browser, pages: dict[str, str]) -> None:
    """A character that no font has is drawn as a box: all of them alike, so that any two look the same."""
    show(browser, pages["japanese"])
    assert browser.run("document.documentElement.lang") == "ja"
    assert browser.run("document.querySelector('h2').textContent") == "曲線"
    looks = browser.run(f"[...'曲線学習勾配損失時間待あアー'].map({LOOK_OF})")
    if len(set(looks)) < len(looks):
        pytest.skip("no font here has Japanese: apt-get install fonts-noto-cjk")
    untranslated = browser.run(
        "[...document.querySelectorAll('h2, h3, dt:not(:has(code)), button, label, thead th:not(:has(code)), .note')]"
        ".map(e => e.textContent.trim()).filter(t => t && !/[\\u3041-\\u30ff\\u4e00-\\u9fff]/.test(t))"
    )
    versions = {"kunren", "python", "torch", "transformers"}
    assert [text for text in untranslated if text not in versions and "loss" not in text] == []


def test_without_scripts_there_is_a_picture(browser: Browser, pages: dict[str, str]) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.size(1440)
        browser.call("Page.navigate", url=pages["single"])
        browser.wait_for("document.readyState === 'complete' && !!document.querySelector('.still path.line')")
        assert browser.run("document.querySelector('.still > svg').getBoundingClientRect().height") > 100
        assert browser.run("document.querySelector('noscript p').getBoundingClientRect().height") > 10
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
