"""Services that any module may use; importing them changes nothing in the process."""
