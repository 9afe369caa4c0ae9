// Words of the field, each explained in a sentence or two.
import { Term } from "./term";

export const Q = () => (
  <Term word="q">
    The p-value after the correction for all tested slices: a slice is significant where it is at or below
    the significance level of the run.
  </Term>
);

export const P = () => (
  <Term word="p">Probability of a difference at least this large if there is none, for this slice alone.</Term>
);

export const Interval = () => (
  <Term word="interval">
    Of intervals computed in this way, the stated share contain the true value. It does not allow for the choice of this slice
    among many; q does.
  </Term>
);

export const Refines = () => (
  <Term word="refines">
    The slice is worse than each slice above it. "New": none above it is significant. "Inherited": a more
    general slice explains it.
  </Term>
);

export const Delta = () => (
  <Term word="delta">
    The value on the slice minus what it is compared with: all examples, or the earlier model on the same
    slice.
  </Term>
);

export const Impact = () => (
  <Term word="impact">Delta times the number of examples: how much the slice adds to the overall value.</Term>
);

export const ConfusionMatrix = () => (
  <Term word="confusion matrix">
    A table of how often each answer was given to the items of each label: the diagonal holds the right answers.
  </Term>
);

export const FrobeniusError = () => (
  <Term word="Frobenius error">
    The square root of the sum of the squared errors of all cells. No cell is off by more.
  </Term>
);

export const Stratum = () => (
  <Term word="stratum">
    The items of one label and, where there is a confidence, of one range of it. Each stratum is sampled on its own.
  </Term>
);

export const Embeddings = () => (
  <Term word="embeddings">
    Numbers that stand for an example, such that examples that are alike have numbers that are alike.
  </Term>
);

export const Mixture = () => (
  <Term word="mixture">
    A division of the examples into groups by their embeddings; the feature's name ends with the largest number of groups.
  </Term>
);

export const Variance = () => (
  <Term word="variance">How much numbers differ from one another: the mean squared distance from their mean.</Term>
);
