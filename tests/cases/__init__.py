"""Problems that users of trainers report, each as a small check of the right behaviour."""
