// Registers what a served page has besides: each line imports a module that adds to `extensions.ts`.
import "./all_slices";
import "./near_slice";
import "./over_runs";
import "./slice_examples";
import "./labelling";
import "./editing";
import "./known";
import "./own_data";
import "./tests";
import "./playground";
