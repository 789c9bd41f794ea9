/** Every term of the page in plain words: what stands under the pointer, and in the help. */

export const GLOSSARY = {
  "sink map": "What each token receives at each step, in one layer. A row is a step, a column a token; bright is much.",
  sink: "A token that takes far more attention than its share, whatever it says.",
  "top key": "The token that receives most attention at a step.",
  "top key of each layer": "For every layer and step, which token receives most: colour is its position in the text, strength its share. One colour along a row is a top key that stays; a white line marks each move.",
  move: "The top key is another token than a step before. Listed are moves from one sink to another. The number is the share of the new top key; the rank is how much attention went along, half of what the new one gains and the old one loses, and one head counts as its part of the layer.",
  split: "Masked and written positions look most at different tokens at the same step.",
  "retrieval head": "A head that looks at a word of the prompt while the same word is written.",
  "even share": "What a token would receive if every position looked at all tokens it may look at alike. Also called the null.",
  attention: "How much the positions of the text draw on each token: the shares of a step add up to 100 %.",
  "the text": "The text before this step. Grey blocks are positions that are not written yet; the background is the attention that each token receives.",
  step: "One pass of the model, after which it commits some tokens.",
  layer: "One of the model's blocks, counted from the input. Each has its own attention.",
  head: "Each layer looks several ways at once: its heads. The mean of heads is their average.",
  queries: "Whose attention is shown: that of all positions, of masked ones only, or of written ones only.",
  colour: "Log colours tell small shares apart; plain shares do not; times the even share is how much more than evenly a token receives.",
  "commit frontier": "Left of it and above, positions are masked; below it they are written.",
  heads: "One number for every head of every layer. A click opens the head in all views.",
  "queries, keys and values": "Why a token is a sink: does its key point where queries point, is it long, and is its value small?",
  "region flow": "How much attention goes from one part of the text to another.",
  "exact map": "Every position by every token it looks at, of one head at one step.",
  finding: "Something that stands out in this run. Value is what was measured, even is what even attention gives, and × is the ratio.",
  "≈": "In this page shares are rounded to eight bits, except those of sinks. anchorwatch view shows all exactly.",
  candidates: "What the model would write at this position, with its probability before this step.",
  fork: "A new run that shares the steps before this one, and goes on with your change.",
} as const;

export type TermName = keyof typeof GLOSSARY;
