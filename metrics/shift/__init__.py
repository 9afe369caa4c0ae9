"""How a confusion matrix changed, estimated from as few new predictions as possible.

Source throughout: Chen, Cai, Zaharia and Zou (2021), "Did the model change?" (MASA).
"""
