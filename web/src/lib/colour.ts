/** Colours: the maps of the project's figures, as stops between which we mix. */

export type RGB = [number, number, number];

/** cividis: from nothing to much, perceptually even, made for colour blindness. */
export const MAGNITUDE =
  "00224e00285b002e6a0533711a386f273e6e32436d3b496c434e6c4b546c535a6d5a5f6e61656f686a716f70737676767d7c788482798c8878938e789b9476a39a74aba072b4a76fbcae6cc4b468cdbb63d5c25edec958e7d150f0d846f9e03afee838";

/** RdBu reversed: less, the same, more. */
export const DIFFERENCE =
  "0530610e41791752901f63a82a71b23480b93f8ec0529dc86bacd184bcd99bc9e0aed3e6c2ddecd4e6f1e0ecf3ecf2f5f7f6f6f9eee7fbe5d8fddcc9fbccb4f8bb9ef5aa89ee9677e48066db6b55d05548c53e3dba2832ab162a930e267c072267001f";

/** viridis: where in the text, from its beginning to its end. */
export const PLACE =
  "440154470d6048186a482374472d7b4537814240863e49893b528b375b8d33638d2f6b8e2c728e297a8e26828e23898e21918c1f988b1fa08822a78528ae8032b67a3fbc734ec36b5ec96270cf5784d44b98d83eaddc30c2df23d8e219ece51bfde725";

/** Okabe and Ito's colours, most different first; the last reads on light and dark. */
export const PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#767676"];

function stops(spelled: string): RGB[] {
  const found: RGB[] = [];
  for (let at = 0; at < spelled.length; at += 6) {
    const value = parseInt(spelled.slice(at, at + 6), 16);
    found.push([value >> 16, (value >> 8) & 255, value & 255]);
  }
  return found;
}

const HELD = { magnitude: stops(MAGNITUDE), difference: stops(DIFFERENCE), place: stops(PLACE) };

export type Kind = keyof typeof HELD;

/** The colour at t in [0, 1]. */
export function mix(kind: Kind, t: number): RGB {
  const held = HELD[kind];
  const place = Math.min(Math.max(t, 0), 1) * (held.length - 1);
  const low = Math.min(Math.floor(place), held.length - 2);
  const part = place - low;
  const [a, b] = [held[low], held[low + 1]];
  return [0, 1, 2].map((i) => Math.round(a[i] + (b[i] - a[i]) * part)) as RGB;
}

export function css(colour: RGB): string {
  return `rgb(${colour[0]} ${colour[1]} ${colour[2]})`;
}

/** Black or white, whichever reads better on a colour. */
export function ink(colour: RGB): string {
  const linear = colour.map((c) => {
    const s = c / 255;
    return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
  });
  const light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return light > 0.179 ? "#000" : "#fff";
}

/** 256 colours as little-endian RGBA words, for image data. */
export function words(kind: Kind): Uint32Array {
  const found = new Uint32Array(256);
  for (let at = 0; at < 256; at++) {
    const [r, g, b] = mix(kind, at / 255);
    found[at] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return found;
}
