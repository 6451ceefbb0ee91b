"""From images to descriptors: loading, embedding, and whatever else describes images."""
