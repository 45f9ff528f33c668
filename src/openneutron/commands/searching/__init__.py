"""Commands that try many variants: sweep, tune; and what one trial does."""
