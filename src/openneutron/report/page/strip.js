// A chart along one axis that is moved and zoomed: the timeline and the memory map.

const INSET = { left: 62, right: 10 };

// `draw({ width, from, to, scale })` gives { still, moving }: what stays, and what is cut off at the chart's edges.
function strip({ label, explanation, height, whole, least, draw }) {
  const view = svg('svg', { class: 'canvas', height, role: 'group', 'aria-label': label });
  const frame = el('div', { class: 'viewport strip' }, view);
  sized(frame, 'height', `${height}px`);
  let from = 0;
  let to = whole;
  let pending = false;
  let drawn = 0;
  const room = () => Math.max(1, frame.clientWidth - INSET.left - INSET.right);

  function render() {
    pending = false;
    drawn = frame.clientWidth;
    if (!drawn) return;
    const width = room();
    const focused =
      document.activeElement?.closest?.('svg.canvas') === view ? document.activeElement.dataset.key : null;
    const { still, moving } = draw({
      width,
      from,
      to,
      scale: (value) => ((value - from) * width) / (to - from),
    });
    view.setAttribute('width', frame.clientWidth);
    view.replaceChildren(...still, svg('svg', { x: INSET.left, width, height }, moving));
    const items = [...view.querySelectorAll('[data-key]')];
    const again = items.find((item) => item.dataset.key === focused) || items[0];
    if (again) again.setAttribute('tabindex', '0');
    if (focused && again?.dataset.key === focused) again.focus({ preventScroll: true });
  }
  function later() {
    if (!pending) requestAnimationFrame(render);
    pending = true;
  }
  function show(a, b) {
    const length = Math.min(whole, Math.max(least, b - a));
    from = Math.min(Math.max(0, a), whole - length);
    to = from + length;
    later();
  }
  const perPixel = () => (to - from) / room();
  function scale(factor, x = INSET.left + room() / 2) {
    const fixed = from + (x - INSET.left) * perPixel();
    show(fixed - (fixed - from) / factor, fixed + (to - fixed) / factor);
  }
  followPointer(frame, { move: (dx) => show(from - dx * perPixel(), to - dx * perPixel()), scale });
  rovingMarks(view);
  new ResizeObserver(() => {
    if (frame.clientWidth !== drawn) later();
  }).observe(frame);

  return {
    figure: figure(frame, explanation, [
      toolButton('+', 'Zoom in', () => scale(1.6)),
      toolButton('−', 'Zoom out', () => scale(1 / 1.6)),
      toolButton('⊡', 'Show all', () => show(0, whole)),
    ]),
    render,
    later,
    // Make [a, b] visible and at least a few pixels wide.
    reveal(a, b) {
      const wanted = Math.max(b - a, least / 4);
      const length = wanted / perPixel() < 6 ? wanted * 40 : to - from;
      const middle = (a + b) / 2;
      if (length !== to - from || a < from || b > to) show(middle - length / 2, middle + length / 2);
      else later();
    },
  };
}

// A mark in a chart: shown, hovered, focused and clicked alike in all of them.
function mark(name, box, key, label, rows, act, caption) {
  const element = svg(
    'g',
    { class: `mark ${name}`, role: 'button', tabindex: '-1', 'data-key': key, 'aria-label': label },
    svg('rect', {
      x: box.x,
      y: box.y,
      width: Math.max(0.8, box.width - (box.width > 3 ? 1 : 0)),
      height: Math.max(1, box.height - (box.height > 6 ? 1 : 0)),
      rx: box.width > 8 && box.height > 8 ? 2 : 0,
    }),
  );
  const letters = Math.floor((box.width - 9) / 6.3);
  if (caption && letters >= Math.min(caption.length, 6) && box.height >= 14) {
    element.append(
      svg('text', {
        x: Math.max(box.x, 0) + 5,
        y: box.y + Math.min(box.height / 2 + 4, 16),
        text: shorten(caption, letters),
      }),
    );
  }
  return alive(element, rows, act);
}
