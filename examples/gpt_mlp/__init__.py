"""MLP-GPT on real text: GPT-2 without its attention, on one CPU or GPU, eager or compiled by one flag.

Reading order: model.py (the network), corpus.py and tokenizer.py (text to tokens), batches.py (tokens to batches),
options.py (the flags), train.py (the loop), report.py and curve.py (what a run shows and leaves behind), sample.py
(text from a trained model).
"""
