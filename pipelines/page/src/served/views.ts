// Registers what a served page has besides: each line imports a module that adds to `extensions.ts`.
import "./labelling";
