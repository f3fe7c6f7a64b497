import { CodedError } from "@torpor/protocol";

const LOCAL_WAY =
  "Or have the operator put the image into this host's folder of images, as an OCI layout or a docker-archive of that name: `skopeo copy docker://IMAGE docker-archive:FILE.tar:IMAGE` where there is a network, then the file into TORPOR_IMAGES (by default `images` in the state directory)";
const MAX_SAID = 600;

/** Why an image could not be had from its registry, from what skopeo said. */
export function explainPull(image: string, said: string): CodedError {
  const why = lastWords(said);
  const about = `image '${image}' cannot be built from: it is not among the local images, and its registry`;
  if (/unauthorized|authentication required|denied|forbidden|invalid username\/password/i.test(why))
    return new CodedError(
      "permission_denied",
      `${about} does not give it out: ${why}. Check the name, and give a username and a password if it is private. ${LOCAL_WAY}`,
    );
  if (/manifest unknown|name unknown|not found/i.test(why))
    return new CodedError("template_not_found", `${about} has none of that name: ${why}. Check name and tag`);
  if (
    /dial tcp|no such host|connection re|i\/o timeout|TLS handshake|x509|EOF$|took too long|proxyconnect|deadline/.test(
      why,
    )
  )
    return new CodedError(
      "template_not_ready",
      `${about} cannot be reached: ${why}. Try again when this host has a way there. ${LOCAL_WAY}`,
    );
  return explainRead(image, said);
}

/** Why an image could not be read, from what skopeo said. */
export function explainRead(image: string, said: string): CodedError {
  const why = lastWords(said);
  const about = `image '${image}' cannot be built from`;
  if (/failed to execute skopeo/.test(said)) return notInstalled("skopeo", image);
  if (/no space left on device/i.test(said)) return tooLarge(image);
  if (/choose an image/i.test(why))
    return new CodedError(
      "invalid_request",
      `${about}: there are several in it; name one, as in oci:DIR:IMAGE`,
    );
  if (/no image found in (manifest list|image index)/i.test(why))
    return new CodedError("unsupported", `${about}: it has no variant for this host: ${why}`);
  return new CodedError("invalid_request", `${about}: it cannot be read: ${why}. Make or fetch it anew`);
}

/** Why an image could not be unpacked, from what umoci said. */
export function explainUnpack(image: string, said: string): CodedError {
  if (/failed to execute umoci/.test(said)) return notInstalled("umoci", image);
  if (/no space left on device/i.test(said)) return tooLarge(image);
  return new CodedError(
    "invalid_request",
    `image '${image}' cannot be unpacked: ${lastWords(said)}. Its layers are broken, or hold what no layer may; make or fetch it anew`,
  );
}

/** An image with more bytes or files than an image may have here. */
export function tooLarge(image: string): CodedError {
  return new CodedError(
    "no_space",
    `image '${image}' is larger than an image may be here, unpacked and packed together: build from a smaller one, or have the operator raise TORPOR_IMAGE_MAX_MB or free disk space`,
  );
}

function notInstalled(program: string, image: string): CodedError {
  return new CodedError(
    "unsupported",
    `image '${image}' cannot be built from: ${program} is not installed on the host. Have the operator install it (\`apt-get install skopeo umoci\`)`,
  );
}

/** The reason in a tool's output: skopeo's fatal line, umoci's marked one, or else the last. */
function lastWords(said: string): string {
  const lines = said.trim().split("\n");
  const fatal =
    lines.findLast((line) => line.includes("level=fatal") || line.includes("⨯")) ?? lines.at(-1) ?? "";
  const quoted = /msg="((?:[^"\\]|\\.)*)"/.exec(fatal)?.[1]?.replaceAll(/\\(.)/g, "$1");
  const text = (quoted ?? fatal.replace(/^.*⨯/, "")).trim();
  const reason = text.replace(/^Error (?:parsing image name|initializing source) (?:"[^"]*"|\S+): /, "");
  // Paths of this host say nothing to whoever asked.
  const plain = reason
    .replaceAll("/work/copy/", "")
    .replaceAll("/work/", "")
    .replaceAll(/[^\P{C}\t]/gu, " ");
  return plain.length > MAX_SAID ? `${plain.slice(0, MAX_SAID)}…` : plain;
}
