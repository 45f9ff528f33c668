// A layered drawing of the graph: layers by longest path, long edges through dummies, neighbours ordered by
// their barycentre, coordinates by weighted least squares. A long network is folded into columns, so that all
// of MobileNetV2 is legible in one window.

const BOX = { width: 150, height: 38, gap: 20, fused: 4, side: 26, dummy: 14, gutter: 64, margin: 34 };

function layoutGraph(nodes, viewWidth, viewHeight) {
  const layers = layersOf(nodes);
  orderLayers(layers);
  placeLayers(layers);
  return foldLayers(layers, viewWidth, viewHeight);
}

// Items are nodes or dummies: { id, node, layer, up: [items], down: [items], x, width }.
function layersOf(nodes) {
  const items = new Map(
    nodes.map((node) => [node.id, { id: node.id, node, layer: 0, up: [], down: [], x: 0 }]),
  );
  const users = new Map(nodes.map((node) => [node.id, []]));
  const position = new Map(nodes.map((node, i) => [node.id, i]));
  const inputs = (node) =>
    [...new Set(node.inputs)].filter((id) => items.has(id) && position.get(id) < position.get(node.id));
  for (const node of nodes) {
    for (const id of inputs(node)) {
      users.get(id).push(node.id);
      items.get(node.id).layer = Math.max(items.get(node.id).layer, items.get(id).layer + 1);
    }
  }
  for (const node of [...nodes].reverse()) {
    // What has no inputs stands right above its first user rather than at the very top.
    const below = users.get(node.id).map((id) => items.get(id).layer);
    if (!inputs(node).length && below.length) items.get(node.id).layer = Math.min(...below) - 1;
  }
  const layers = [];
  const put = (item) => {
    item.width = item.node ? BOX.width : BOX.dummy;
    layers[item.layer] ||= [];
    layers[item.layer].push(item);
  };
  for (const node of nodes) {
    const item = items.get(node.id);
    put(item);
    // One chain of dummies per source: branches of the same value share their way.
    const below = users
      .get(node.id)
      .map((id) => items.get(id))
      .sort((a, b) => a.layer - b.layer);
    let last = item;
    for (const user of below) {
      while (last.layer < user.layer - 1) {
        const dummy = {
          id: null,
          node: null,
          source: item,
          layer: last.layer + 1,
          up: [last],
          down: [],
          x: 0,
        };
        last.down.push(dummy);
        put(dummy);
        last = dummy;
      }
      let from = last;
      while (from.layer > user.layer - 1) [from] = from.up;
      from.down.push(user);
      user.up.push(from);
    }
  }
  for (let i = 0; i < layers.length; i += 1) layers[i] ||= [];
  return layers;
}

function orderLayers(layers) {
  const rank = () => {
    for (const layer of layers) for (const [i, item] of layer.entries()) item.order = i;
  };
  const centre = (item, side) =>
    item[side].length
      ? item[side].reduce((sum, other) => sum + other.order, 0) / item[side].length
      : item.order;
  const size = layers.reduce((sum, layer) => sum + layer.length, 0);
  rank();
  for (let sweep = 0; sweep < (size > 4000 ? 2 : 8); sweep += 1) {
    const side = sweep % 2 ? 'down' : 'up';
    for (const layer of side === 'up' ? layers : [...layers].reverse()) {
      const keys = new Map(layer.map((item) => [item, centre(item, side)]));
      layer.sort((a, b) => keys.get(a) - keys.get(b) || a.order - b.order);
      layer.forEach((item, i) => {
        item.order = i;
      });
    }
  }
}

function placeLayers(layers) {
  const pull = (a, b) => (a.node && b.node ? 1 : a.node || b.node ? 0.002 : 2);
  for (const layer of layers) {
    let x = 0;
    for (const item of layer) {
      item.x = x + item.width / 2;
      x += item.width + BOX.side;
    }
    for (const item of layer) item.x -= (x - BOX.side) / 2;
  }
  const size = layers.reduce((sum, layer) => sum + layer.length, 0);
  for (let sweep = 0; sweep < (size > 4000 ? 4 : 24); sweep += 1) {
    const down = sweep % 2 === 0;
    for (const layer of down ? layers : [...layers].reverse()) {
      settle(
        layer,
        layer.map((item) => {
          let sum = 0;
          let weight = 0;
          for (const other of [...item.up, ...item.down]) {
            const near = pull(item, other) * (other.layer < item.layer === down ? 1 : 0.3);
            sum += near * other.x;
            weight += near;
          }
          return { wish: weight ? sum / weight : item.x, weight: item.node ? 1 : 0.02 };
        }),
      );
    }
  }
}

// The positions nearest to what is wished for that keep the order and the distances: isotonic regression.
function settle(layer, wishes) {
  const blocks = [];
  let offset = 0;
  layer.forEach((item, i) => {
    if (i) offset += (layer[i - 1].width + item.width) / 2 + BOX.side;
    item.offset = offset;
    let block = {
      sum: wishes[i].weight * (wishes[i].wish - offset),
      weight: wishes[i].weight,
      items: [item],
    };
    while (blocks.length && blocks.at(-1).sum / blocks.at(-1).weight > block.sum / block.weight) {
      const before = blocks.pop();
      block = {
        sum: before.sum + block.sum,
        weight: before.weight + block.weight,
        items: before.items.concat(block.items),
      };
    }
    blocks.push(block);
  });
  for (const block of blocks) for (const item of block.items) item.x = block.sum / block.weight + item.offset;
}

// Operators one kernel call computes together stand close.
function isFused(item) {
  if (!item.node || item.up.length !== 1 || !item.up[0].node || item.up[0].down.length !== 1) return false;
  const above = item.up[0].node;
  return item.node.where === 'npu' && item.node.calls.some((call) => above.calls.includes(call));
}

function foldLayers(layers, viewWidth, viewHeight) {
  const gaps = layers.map((layer, i) => {
    if (!i) return 0;
    const real = layer.filter((item) => item.node);
    return real.length && real.every(isFused) ? BOX.fused : BOX.gap;
  });
  const crossing = layers.map((layer, i) => (i ? layer.reduce((sum, item) => sum + item.up.length, 0) : 0));
  let best = null;
  for (let columns = 1; columns <= Math.min(16, layers.length); columns += 1) {
    const cuts = cutsFor(columns, layers.length, crossing, gaps);
    if (!cuts) continue;
    const drawn = measure(layers, cuts, gaps);
    const scale = Math.min(viewWidth / drawn.width, viewHeight / drawn.height, 1);
    if (!best || scale > best.scale * 1.04) best = { ...drawn, scale, cuts };
  }
  return draw(layers, best, gaps);
}

// Where columns end: near equal lengths, where few edges cross and no fused operators are torn apart.
function cutsFor(columns, length, crossing, gaps) {
  const cuts = [0];
  const reach = Math.max(1, Math.floor((length / columns) * 0.22));
  for (let i = 1; i < columns; i += 1) {
    const ideal = Math.round((i * length) / columns);
    let found = null;
    for (let at = ideal - reach; at <= ideal + reach; at += 1) {
      if (at <= cuts.at(-1) || at >= length || gaps[at] === BOX.fused) continue;
      const price = 4 * crossing[at] + Math.abs(at - ideal) * (4 / reach);
      if (!found || price < found.price) found = { at, price };
    }
    if (!found) return null;
    cuts.push(found.at);
  }
  return cuts;
}

function measure(layers, cuts, gaps) {
  const columns = cuts.map((from, i) => {
    const part = layers.slice(from, cuts[i + 1] ?? layers.length);
    const items = part.flat();
    const left = Math.min(...items.map((item) => item.x - item.width / 2));
    const right = Math.max(...items.map((item) => item.x + item.width / 2));
    const height = part.reduce((sum, _, k) => sum + BOX.height + (k ? gaps[from + k] : 0), 0);
    return { from, left, width: right - left, height };
  });
  return {
    columns,
    width:
      columns.reduce((sum, column) => sum + column.width, (columns.length - 1) * BOX.gutter) + 2 * BOX.margin,
    height: Math.max(...columns.map((column) => column.height)) + 2 * BOX.margin,
  };
}

function draw(layers, plan, gaps) {
  let x = BOX.margin;
  plan.columns.forEach((column, i) => {
    let y = BOX.margin;
    column.x = x;
    column.lanes = 0;
    layers.slice(column.from, plan.cuts[i + 1] ?? layers.length).forEach((layer, k) => {
      if (k) y += gaps[column.from + k];
      for (const item of layer) Object.assign(item, { cx: x + item.x - column.left, top: y, column: i });
      y += BOX.height;
    });
    column.bottom = y;
    x += column.width + BOX.gutter;
  });
  const boxes = [];
  const edges = [];
  const lanes = new Map(); // the way from column to column of one value is drawn once
  for (const item of layers.flat()) {
    if (item.node) boxes.push({ node: item.node, x: item.cx - BOX.width / 2, y: item.top });
    for (const below of item.down) edges.push(edge(item, below, plan.columns, lanes));
  }
  return { boxes, edges, width: plan.width, height: plan.height, scale: plan.scale };
}

// The path from an item to one in the next layer; it passes through the whole height of a dummy below.
function edge(from, to, columns, lanes) {
  const [x1, y1] = [from.cx, from.top + BOX.height];
  const [x2, y2] = [to.cx, to.top];
  const end = to.node ? '' : ` V ${y2 + BOX.height}`;
  const ids = [(from.source || from).id, to.node ? to.id : null];
  if (from.column === to.column) {
    const middle = (y1 + y2) / 2;
    const curve = Math.abs(x1 - x2) < 0.5 ? `V ${y2}` : `C ${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`;
    return { path: `M ${x1} ${y1} ${curve}${end}`, ids };
  }
  const column = columns[from.column];
  const value = `${from.column} ${ids[0]}`;
  if (!lanes.has(value)) lanes.set(value, column.lanes++);
  const lane = lanes.get(value);
  const gutter = columns[to.column].x - BOX.gutter / 2 + (lane % 6) * 5;
  const low = column.bottom + 12 + (lane % 4) * 5;
  const high = BOX.margin - 16 - (lane % 3) * 4;
  const r = 7;
  const into = x2 >= gutter ? r : -r;
  return {
    path:
      `M ${x1} ${y1} V ${low - r} Q ${x1} ${low} ${x1 + r} ${low} H ${gutter - r} ` +
      `Q ${gutter} ${low} ${gutter} ${low - r} V ${high + r} Q ${gutter} ${high} ${gutter + into} ${high} ` +
      `H ${x2 - into} Q ${x2} ${high} ${x2} ${high + r} V ${y2}${end}`,
    ids,
  };
}
