"""How a confusion matrix changed, estimated from few new predictions: Chen, Cai, Zaharia and Zou (2021), MASA."""
