// The graph: drag to move, pinch or Ctrl + wheel to zoom, arrow keys to walk along the edges.

function drawGraph() {
  const home = section('graph');
  if (!NODES.length) {
    home.append(el('p', { class: 'empty', text: 'Nothing is known of the operators of this program.' }));
    return;
  }
  const view = svg('svg', { class: 'canvas', role: 'group', 'aria-label': graphLabel() });
  const world = svg('g', {});
  const wires = svg('g', { class: 'wires', 'aria-hidden': 'true' });
  const boxes = svg('g', {});
  world.append(wires, boxes);
  view.append(world);
  const frame = el('div', { class: 'viewport graph-view' }, view);
  const zoom = zoomable(frame, view, world);
  const wide = toolButton('⤢', 'Fill the window', () => {
    const on = whole.classList.toggle('expanded');
    wide.setAttribute('aria-pressed', String(on));
    arrange();
  });
  const whole = figure(frame, graphLegend(), [...zoom.buttons, wide]);
  home.append(
    whole,
    el('p', {
      class: 'help',
      text: 'Drag to move, Ctrl + wheel or pinch to zoom; with the keyboard, arrows walk along the edges and Enter selects.',
    }),
  );

  let elements = new Map();
  function arrange() {
    frame.style.removeProperty('height');
    const plan = layoutGraph(NODES, frame.clientWidth || 1000, frame.clientHeight || 600);
    const most = Math.max(1, ...NODES.map((node) => node.cycles || 0));
    wires.replaceChildren(
      ...plan.edges.map((line) =>
        svg('path', { d: line.path, 'data-from': line.ids[0], 'data-to': line.ids[1] }),
      ),
    );
    elements = new Map(plan.boxes.map((box, i) => [box.node.id, graphBox(box, most, i === 0)]));
    boxes.replaceChildren(...elements.values());
    // A small graph does not need the whole window's height.
    const tall = Math.ceil(plan.height * Math.min(1.15, frame.clientWidth / plan.width));
    if (tall < frame.clientHeight) sized(frame, 'height', `${Math.max(300, tall)}px`);
    zoom.show(plan);
    mark();
  }
  function mark(origin) {
    for (const [id, element] of elements) {
      element.classList.toggle('selected', selection.nodes.has(id));
      element.setAttribute('aria-pressed', String(selection.nodes.has(id)));
    }
    for (const line of wires.children) {
      line.classList.toggle(
        'selected',
        selection.nodes.has(line.dataset.from) || selection.nodes.has(line.dataset.to),
      );
    }
    const first = [...selection.nodes][0];
    if (origin !== undefined && origin !== 'graph' && elements.has(first))
      zoom.reveal(elements.get(first).box);
  }
  follow(mark);

  whole.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && whole.classList.contains('expanded')) wide.click();
  });
  roving(
    boxes,
    () => [...boxes.children],
    (key, at, all) => walk(key, all[at].node, all),
  );
  arrange();
  let width = frame.clientWidth;
  new ResizeObserver(() => {
    if (Math.abs(frame.clientWidth - width) < 60) return;
    width = frame.clientWidth;
    arrange();
  }).observe(frame);
}

function graphLabel() {
  const cpu = NODES.filter((node) => node.where === 'cpu').length;
  return `Graph of ${count(NODES.length, 'operator')} in ${count(SUMMARY.partitions || 0, 'partition')}, ${cpu} on the CPU`;
}

function graphLegend() {
  const partitions = [...new Set(NODES.filter((node) => node.where === 'npu').map((node) => node.partition))];
  const entries = partitions
    .slice(0, PALETTE)
    .map((number) => [
      `place-${number % PALETTE}`,
      partitions.length > 1 ? `partition ${number}` : 'on the NPU',
    ]);
  if (partitions.length > PALETTE)
    entries.push(['place-io', `${partitions.length - PALETTE} more, colours repeat`]);
  if (NODES.some((node) => node.where === 'cpu')) entries.push(['place-cpu', 'on the CPU']);
  return legend(entries);
}

function graphBox({ node, x, y }, most, first) {
  const detail = node.cycles ? time(node.cycles) : shape(node);
  const name = shortOp(node.op) === 'input' || shortOp(node.op) === 'output' ? node.name : shortOp(node.op);
  const label = `${name}, ${node.name}, ${placeName(node)}${node.reason ? `, ${node.reason.code}: ${node.reason.reason}` : ''}`;
  const element = svg(
    'g',
    {
      class: `box ${placeClass(node)}`,
      transform: `translate(${x} ${y})`,
      role: 'button',
      tabindex: first ? '0' : '-1',
      'aria-label': label,
      'data-node': node.id,
    },
    svg('rect', { class: 'body', width: BOX.width, height: BOX.height, rx: 6 }),
    node.cycles
      ? svg('rect', {
          class: 'cost',
          x: 8,
          y: BOX.height - 5,
          height: 2,
          rx: 1,
          width: Math.max(1, (BOX.width - 16) * (node.cycles / most)),
        })
      : null,
    svg('text', { class: 'op', x: 10, y: 16, text: shorten(name, node.reason ? 12 : 17) }),
    svg('text', { class: 'detail', x: 10, y: 29, text: shorten(detail, 23) }),
    node.reason
      ? svg('text', { class: 'code', x: BOX.width - 9, y: 16, 'text-anchor': 'end', text: node.reason.code })
      : null,
  );
  element.node = node;
  element.box = { x, y, width: BOX.width, height: BOX.height };
  return alive(
    element,
    () => nodeTip(node),
    () => toggle('node', node.id, 'graph'),
  );
}

function walk(key, node, all) {
  const index = (id) => all.findIndex((element) => element.node.id === id);
  const at = index(node.id);
  if (key === 'ArrowUp') return node.inputs.length ? index(node.inputs[0]) : null;
  if (key === 'ArrowDown') return USERS.get(node.id).length ? index(USERS.get(node.id)[0]) : null;
  if (key === 'ArrowRight') return Math.min(all.length - 1, at + 1);
  if (key === 'ArrowLeft') return Math.max(0, at - 1);
  if (key === 'Home') return 0;
  return key === 'End' ? all.length - 1 : null;
}

// -- moving and zooming -------------------------------------------------------------------------------------

function zoomable(frame, view, world) {
  let plan = { width: 1, height: 1 };
  let at = { x: 0, y: 0, k: 1 };
  const size = () => ({ width: frame.clientWidth, height: frame.clientHeight });
  const fitScale = () => Math.min(size().width / plan.width, size().height / plan.height);

  function apply() {
    world.setAttribute('transform', `translate(${at.x} ${at.y}) scale(${at.k})`);
    view.classList.toggle('far', at.k < 0.42);
  }
  function fit() {
    // A phone shows the beginning at a legible size rather than everything at an illegible one.
    const k = Math.min(1.15, Math.max(fitScale(), 0.5));
    const spare = (whole, part) => (part * k < whole ? (whole - part * k) / 2 : 0);
    at = { k, x: spare(size().width, plan.width), y: spare(size().height, plan.height) };
    apply();
  }
  function scale(factor, x = size().width / 2, y = size().height / 2) {
    const k = Math.min(3, Math.max(Math.min(fitScale(), 0.5) * 0.8, at.k * factor));
    at = { k, x: x - ((x - at.x) * k) / at.k, y: y - ((y - at.y) * k) / at.k };
    apply();
  }
  function move(dx, dy) {
    at = { ...at, x: at.x + dx, y: at.y + dy };
    apply();
  }
  function reveal(box) {
    const { width, height } = size();
    const [left, top] = [at.x + at.k * box.x, at.y + at.k * box.y];
    const inside = left > 0 && top > 0 && left + at.k * box.width < width && top + at.k * box.height < height;
    if (inside && at.k > 0.4) return;
    const k = Math.max(at.k, 0.6);
    // In the middle, unless that would show emptiness beyond the graph's edge.
    const along = (room, whole, middle) =>
      whole * k < room
        ? (room - whole * k) / 2
        : Math.min(0, Math.max(room - whole * k, room / 2 - k * middle));
    at = {
      k,
      x: along(width, plan.width, box.x + box.width / 2),
      y: along(height, plan.height, box.y + box.height / 2),
    };
    apply();
  }
  followPointer(frame, { move, scale });
  world.addEventListener('focusin', (event) => {
    const box = event.target.box;
    if (box && event.target.matches(':focus-visible')) reveal(box);
  });
  return {
    buttons: [
      toolButton('+', 'Zoom in', () => scale(1.35)),
      toolButton('−', 'Zoom out', () => scale(1 / 1.35)),
      toolButton('⊡', 'Show all', () => {
        const k = Math.min(1.15, fitScale());
        at = { k, x: (size().width - plan.width * k) / 2, y: (size().height - plan.height * k) / 2 };
        apply();
      }),
    ],
    reveal,
    show(drawn) {
      plan = drawn;
      fit();
    },
  };
}

// Drags, pinches and Ctrl + wheel as moves and scales. A drag does not count as a click.
function followPointer(frame, { move, scale }) {
  const fingers = new Map();
  let dragged = false;
  frame.addEventListener('pointerdown', (event) => {
    if (event.button) return;
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    dragged = false;
  });
  frame.addEventListener('pointermove', (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const now = { x: event.clientX, y: event.clientY };
    const others = [...fingers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    if (others.length) {
      const far = (a, b) => Math.hypot(a.x - b.x, a.y - b.y);
      const box = frame.getBoundingClientRect();
      scale(
        far(now, others[0]) / Math.max(1, far(before, others[0])),
        (now.x + others[0].x) / 2 - box.left,
        (now.y + others[0].y) / 2 - box.top,
      );
      dragged = true;
    } else {
      if (!dragged && Math.hypot(now.x - before.x, now.y - before.y) < 4) return;
      if (!dragged) frame.setPointerCapture(event.pointerId);
      dragged = true;
      hideTip();
      move(now.x - before.x, now.y - before.y);
    }
    fingers.set(event.pointerId, now);
  });
  for (const kind of ['pointerup', 'pointercancel']) {
    frame.addEventListener(kind, (event) => fingers.delete(event.pointerId));
  }
  frame.addEventListener(
    'click',
    (event) => {
      if (dragged) event.stopPropagation();
      dragged = false;
    },
    true,
  );
  frame.addEventListener(
    'wheel',
    (event) => {
      if (!event.ctrlKey && !event.metaKey && !frame.closest('.expanded')) return;
      event.preventDefault();
      const box = frame.getBoundingClientRect();
      scale(Math.exp(-event.deltaY * 0.0022), event.clientX - box.left, event.clientY - box.top);
    },
    { passive: false },
  );
}
