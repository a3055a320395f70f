/**
 * Makes existing nodes look like new ones with as few changes as can be: text grows in place, so that what is
 * selected stays selected and nothing is laid out again.
 */

/**
 * The children of `parent` from number `from` on become like `nodes`.
 * @param {Node} parent
 * @param {number} from
 * @param {Node[]} nodes
 */
export function patch(parent, from, nodes) {
  nodes.forEach((wanted, n) => {
    const present = parent.childNodes[from + n];
    if (!present) parent.appendChild(wanted);
    else if (!present.isEqualNode(wanted)) become(present, wanted);
  });
  while (parent.childNodes.length > from + nodes.length) parent.lastChild?.remove();
}

/** @param {ChildNode} present @param {Node} wanted */
function become(present, wanted) {
  if (present instanceof Text && wanted instanceof Text) grow(present, wanted.data);
  else if (present instanceof Element && wanted instanceof Element && present.tagName === wanted.tagName) {
    for (const { name } of [...present.attributes]) if (!wanted.hasAttribute(name)) present.removeAttribute(name);
    for (const { name, value } of wanted.attributes) {
      if (present.getAttribute(name) !== value) present.setAttribute(name, value);
    }
    patch(present, 0, [...wanted.childNodes]);
  } else present.replaceWith(wanted);
}

/** @param {Text} text @param {string} wanted */
function grow(text, wanted) {
  if (wanted.startsWith(text.data)) text.appendData(wanted.slice(text.length));
  else text.data = wanted;
}
