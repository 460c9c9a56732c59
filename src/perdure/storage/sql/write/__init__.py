"""Operations that change something."""
