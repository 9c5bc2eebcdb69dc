"""Turns matplotlib's SVG into a small <svg> element that can share a page with others."""

import re


def inline(text: str, name: str, width_px: int, height_px: int) -> str:
    """The svg element alone, without what is the same in all of them, with ids that no other figure has."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*</defs>", "", text)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    named = set(re.findall(r"(?:url\(#|href=\"#)([^\")]+)", text))
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in named else "", text)
    text = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{name}-", text)
    text = re.sub(r"font-family: [^;\"]*", "font-family: sans-serif", text)
    text = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", text)
    text = re.sub(r'( (?:d|x|y|width|height|transform)=")([^"]+)', _rounded, text)
    text = re.sub(r"\s*\n\s*", "\n", text)
    text = re.sub(r'<g([^>]*)>((?:\n<use [^>]*style="[^"]*"/>)+)\n</g>', _styled_once, text)
    size = f'width="{width_px}" height="{height_px}" stroke-linejoin="round" stroke-linecap="butt"'
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', size, text, count=1)


def _styled_once(group: re.Match[str]) -> str:
    """The style of a group of equal marks, written once."""
    styles = set(re.findall(r'style="[^"]*"', group[2]))
    if len(styles) > 1:
        return group[0]
    marks = re.sub(r' style="[^"]*"', "", group[2])
    return f"<g{group[1]} {styles.pop()}>{marks}\n</g>"


def _rounded(attribute: re.Match[str]) -> str:
    """Coordinates to a tenth of a point, those of markers to a hundredth."""

    def short(number: re.Match[str]) -> str:
        value = float(number[0])
        return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"

    return attribute[1] + re.sub(r"-?\d+\.\d{2,}", short, attribute[2])
