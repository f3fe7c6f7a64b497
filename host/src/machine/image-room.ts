import { CodedError } from "@torpor/protocol";
import { checkDisk, type Headroom } from "./capacity.ts";

const MIB = 1024 ** 2;
/** What is left free on the disk at least, as for a template from a recipe. */
const FREE_MIB_MIN = 3 * 1024;
/** Below this an image is not begun: the file system alone takes some. */
const SPACE_MIB_MIN = 64;

/** The disk that images being read may fill: shared out, so that all of them together leave it below its watermark. */
export class ImageRoom {
  readonly #headroom: () => Headroom;
  #reservedMib = 0;

  constructor(headroom: () => Headroom) {
    this.#headroom = headroom;
  }

  /**
   * Takes room for one image, twice what it may take itself: packed once more, it all lies on the disk twice for a while.
   * At most half of what is left, so that another one need not wait for it.
   *
   * @throws CodedError `no_space`
   */
  reserve(image: string, maxMib: number): { bytes: number; release: () => void } {
    this.check(image);
    const left = freeMib(this.#headroom()) - this.#reservedMib;
    const mib = Math.min(maxMib, Math.floor(left / 4));
    if (mib < SPACE_MIB_MIN)
      throw new CodedError(
        "no_space",
        `image '${image}' cannot be built from: the disk that holds the templates is nearly full, or will be by what is being built. Try again later, or have the operator free some space`,
      );
    this.#reservedMib += 2 * mib;
    let isHeld = true;
    return {
      bytes: mib * MIB,
      release: () => {
        if (isHeld) this.#reservedMib -= 2 * mib;
        isHeld = false;
      },
    };
  }

  /** Before a build begins, and before each of its steps. @throws CodedError `no_space` above the watermark */
  check(image: string): void {
    checkDisk(this.#headroom(), `image '${image}' cannot be built from`);
  }

  /** Whether what nobody needs is to go, however new. */
  get isTight(): boolean {
    const { diskUsedPercent, diskWatermarkPercent } = this.#headroom();
    return diskUsedPercent >= diskWatermarkPercent;
  }
}

/** What can be written until the watermark is reached, or else nearly nothing is free. */
function freeMib({ diskMb, diskUsedPercent, diskWatermarkPercent }: Headroom): number {
  const totalMib = diskMb / Math.max(0.001, 1 - diskUsedPercent / 100);
  const untilWatermark = (totalMib * (diskWatermarkPercent - diskUsedPercent)) / 100;
  return Math.min(diskMb - FREE_MIB_MIN, untilWatermark);
}
