// Pictures and sounds of the next message: by button, by paste, or dropped on the page.

/// Largest file, in bytes. As text in a request it is a third larger. The server has limits of its
/// own, and reports them.
const LARGEST_FILE = 20 * 1024 * 1024;

/// The kind of a file by its media type, otherwise by the end of its name. The server decides by the
/// content.
const KINDS = [
  { kind: "picture", main: "image", type: /^image\//, name: /\.(png|jpe?g|webp|gif|bmp|tiff?)$/i },
  { kind: "sound", main: "audio", type: /^audio\//, name: /\.(wav|flac)$/i },
];

/// Reads a file. The result has `kind`, `name` and `address`, a data URI.
async function readMedia(file) {
  const isOf = ({ type, name }) => type.test(file.type) || (file.type === "" && name.test(file.name));
  const kind = KINDS.find(isOf);
  if (!kind) throw new Error(`“${file.name}” is not a picture or a sound.`);
  if (file.size > LARGEST_FILE) throw new Error(`“${file.name}” is larger than 20 MiB.`);
  const address = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`“${file.name}” cannot be read.`));
    reader.readAsDataURL(file);
  });
  // Some systems know no media type of the file.
  const ending = file.name.split(".").at(-1).toLowerCase();
  const head = kind.type.test(file.type) ? null : `data:${kind.main}/${ending};base64`;
  const typed = head ? address.replace(/^[^,]*/, head) : address;
  return { kind: kind.kind, name: file.name || kind.kind, address: typed };
}

/// Returns the part of a request's message for a file.
function mediaPart({ kind, name, address }) {
  if (kind === "picture") return { type: "image_url", image_url: { url: address } };
  const data = address.slice(address.indexOf(",") + 1);
  const format = /\.flac$/i.test(name) || /^data:audio\/(x-)?flac/.test(address) ? "flac" : "wav";
  return { type: "input_audio", input_audio: { data, format } };
}

/// Returns the element that shows a file.
function mediaNode({ kind, name, address }) {
  if (kind === "picture") return element("img", { src: address, alt: name });
  return element("audio", { src: address, controls: true, "aria-label": name });
}

/// Connects the inputs for files. `report` shows a problem.
function connectMedia(attached, report) {
  const show = () => {
    const list = byId("attached");
    list.replaceChildren(...attached.map((media, index) => element("li", {},
      media.kind === "picture" ? element("img", { src: media.address, alt: "" }) : "♪",
      element("span", {}, media.name),
      smallButton("Remove", () => {
        attached.splice(index, 1);
        show();
        byId("message").focus();
      }, { "aria-label": `Remove ${media.name}` }))));
    list.hidden = attached.length === 0;
  };
  const accept = async (files) => {
    for (const file of files) {
      try {
        attached.push(await readMedia(file));
        report(`Attached ${file.name}.`);
      } catch (error) {
        report(error.message);
      }
    }
    show();
  };
  byId("attach").onclick = () => byId("files").click();
  byId("files").onchange = async (event) => {
    const input = event.currentTarget;
    await accept([...input.files]);
    // The same file can be chosen again.
    input.value = "";
    byId("message").focus();
  };
  byId("message").addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (files.length === 0) return;
    event.preventDefault();
    accept(files);
  });
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const mark = (over) => byId("composer").classList.toggle("dropping", over);
  addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    mark(true);
  });
  addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) mark(false);
  });
  addEventListener("drop", (event) => {
    mark(false);
    if (!hasFiles(event)) return;
    event.preventDefault();
    accept([...event.dataTransfer.files]);
  });
  return show;
}
