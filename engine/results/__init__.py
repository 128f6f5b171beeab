"""What leaves a call: redaction, result policies, receipts."""
