"""What may run and with what: pure decisions on frozen values; only ``load`` reads files."""
