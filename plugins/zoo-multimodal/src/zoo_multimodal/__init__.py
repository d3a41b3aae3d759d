"""Images and texts together: CLIP, DALL-E and Flamingo in small, on drawn and captioned shapes."""
