// The three texts of a page with the least contrast to their ground, and that contrast.
(() => {
  const rgb = text => text.match(/[\d.]+/g).map(Number);
  const light = part => (part /= 255) <= .03928 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4;
  const luminance = c => .2126 * light(c[0]) + .7152 * light(c[1]) + .0722 * light(c[2]);
  const ground = element => {
    for (; element; element = element.parentElement) {
      const c = rgb(getComputedStyle(element).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join("");
    if (!own || element.closest("script, style, noscript, title, [hidden]")) continue;
    const style = getComputedStyle(element), inked = element instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [luminance(rgb(inked)), luminance(ground(element))];
    found.push([(Math.max(a, b) + .05) / (Math.min(a, b) + .05), own.slice(0, 40)]);
  }
  return found.sort((x, y) => x[0] - y[0]).slice(0, 3);
})()
