"""What operators see: metrics, one log line an exchange, the last decisions."""
