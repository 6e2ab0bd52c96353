"""The run report: what the files of an output folder tell, as a page, a picture and live. Reads files only."""
