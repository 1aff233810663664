"""Callbacks for Hugging Face's and Lightning's trainers."""
